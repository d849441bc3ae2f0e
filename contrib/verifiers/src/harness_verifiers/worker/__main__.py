"""Load a taskset of verifiers, run its tools, score attempts: one JSON object per line in, one out.

    python -P __main__.py TASKSET CONFIG LIMIT

`do` is `tasks`, `score`, or of a session `open`, `call` or `close`. Runs in an environment with
`verifiers` and without harness, so it imports nothing of harness. Ends with the parent process.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import hashlib
import inspect
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import verifiers.v1 as vf
from mcp import Client  # type: ignore[attr-defined]  # of mcp 2
from mcp.server.mcpserver import MCPServer  # type: ignore[import-not-found]
from pydantic import TypeAdapter
from verifiers import __version__
from verifiers.v1 import graph
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.envs.single_agent import SingleAgentEnv
from verifiers.v1.harnesses.utils.mcp import mcp_content_to_chat_content
from verifiers.v1.mcp.server import _call_state
from verifiers.v1.session import call_hook, hook_boundary
from verifiers.v1.state import state_cls
from verifiers.v1.trace import AgentInfo, ModelCall, Trace, TraceTask
from verifiers.v1.types import Message
from verifiers.v1.utils.decorators import discover_decorated
from verifiers.v1.utils.loaders import environment_class, taskset_class, taskset_config_type

JSONObject = Mapping[str, Any]
MESSAGE: TypeAdapter[Any] = TypeAdapter(Message)
PAGE = 50
_slot: contextvars.ContextVar[SimpleNamespace] = contextvars.ContextVar("slot")
"""Its `value` is the state of one attempt, which its tools change and its rewards read."""


class Refused(Exception):
    """A taskset that cannot run here, with the reason."""


class Server:
    """A toolset in this process, called like an MCP server; its tools see the attempt's state.

    verifiers sends the state over HTTP to a separate server. Here both ends are in one process: as
    there, a call receives a copy, and its result becomes the state of the attempt.
    """

    def __init__(self, toolset: Any) -> None:
        self._toolset = toolset

        async def pull() -> Any:
            return toolset._state_adapter.validate_json(_slot.get().value.model_dump_json())

        async def push(before: bytes) -> None:
            after = toolset._state_adapter.dump_json(_call_state.get())
            if after != before:
                slot = _slot.get()
                slot.value = type(slot.value).model_validate_json(after)

        toolset._pull_state, toolset._push_state = pull, push

    async def start(self, stack: contextlib.AsyncExitStack, data: Any = None) -> Server:
        """Set the toolset up as verifiers does, until the stack is closed."""
        toolset = self._toolset
        if toolset.config.url:
            raise Refused(
                f"its tools {toolset.server_name!r} are on another server; "
                "the task set `mcp` supports such servers"
            )
        await stack.enter_async_context(toolset._exit_stack)
        await toolset.setup()
        if data is not None:
            await toolset.setup_task(data)
        self._server = MCPServer(toolset.server_name or type(toolset).__name__)
        toolset.register(self._server)
        return self

    async def connected(
        self, stack: contextlib.AsyncExitStack
    ) -> tuple[Any, list[tuple[str, JSONObject]]]:
        """Return a client with calls that see the caller's state, and the tools with definitions."""
        client = await stack.enter_async_context(Client(self._server))
        server_name = self._toolset.server_name
        prefix = f"{server_name}_" if server_name else ""
        tools: list[tuple[str, JSONObject]] = []
        for tool in (await client.list_tools()).tools:
            # Names are shown with the server's, as verifiers does, and called without it.
            definition: JSONObject = {
                "name": prefix + tool.name,
                "description": tool.description or "",
                "parameters": tool.input_schema,
            }
            tools.append((tool.name, definition))
        return client, tools


class Session:
    """The tools and the state of one attempt.

    Opened and closed in one asyncio task, as MCP's client requires.
    """

    def __init__(self, task: Any, shared: list[Server]) -> None:
        self.definitions: list[JSONObject] = []
        self._slot = SimpleNamespace(value=state_cls(type(task))())
        self._task, self._shared = task, shared
        self._where: dict[str, tuple[Any, str]] = {}
        self._over = asyncio.Event()
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lives = asyncio.create_task(self._live())

    async def _live(self) -> None:
        _slot.set(self._slot)
        async with contextlib.AsyncExitStack() as stack:
            try:
                own = [Server(toolset) for toolset in self._task.toolsets(self._task.config)]
                for server in own:
                    await server.start(stack, self._task.data)
                for server in (*self._shared, *own):
                    client, tools = await server.connected(stack)
                    for name, definition in tools:
                        if definition["name"] in self._where:
                            raise Refused(f"two of its tools are called {definition['name']!r}")
                        self._where[definition["name"]] = (client, name)
                        self.definitions.append(definition)
            except Exception as error:
                self.ready.set_exception(error)
                return
            self.ready.set_result(None)
            await self._over.wait()

    async def call(self, shown: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Return a tool's output and whether it succeeded."""
        _slot.set(self._slot)
        client, name = self._where[shown]
        result = await client.call_tool(name, dict(arguments))
        content = mcp_content_to_chat_content(result.content)
        if not isinstance(content, str):
            texts = [part.get("text", "(an image, which is not shown)") for part in content]
            content = "\n".join(texts)
        return content, not result.is_error

    async def close(self) -> JSONObject:
        """Return the final state."""
        self._over.set()
        await self._lives
        return dict(json.loads(self._slot.value.model_dump_json()))


class Desk:
    """A taskset, and the sessions of its tasks by the names that the parent gives them."""

    def __init__(self, name: str, config: Mapping[str, Any], limit: int | None) -> None:
        config_type = taskset_config_type(name)
        self._taskset = taskset_class(name)(config_type.model_validate({**config, "id": name}))
        if environment_class(name) is not SingleAgentEnv:
            raise Refused(
                "it has an environment of its own "
                "(several agents, or a user), which is not supported"
            )
        if not self._taskset.bounded and limit is None:
            raise Refused("it is infinite; set a limit: task.options.limit=N")
        view = self._taskset if limit is None else self._taskset.take(limit)
        self._tasks = list(view)
        if not self._tasks:
            raise Refused("it has no tasks with this config")
        _check(self._tasks[0])
        self._shared: list[Server] = []
        self._sessions: dict[str, Session] = {}

    async def start(self) -> None:
        """Start the tools that all attempts share, and list the tools of an attempt."""
        stack = contextlib.AsyncExitStack()  # they end with this process
        for toolset in self._taskset.toolsets(self._taskset.config):
            self._shared.append(await Server(toolset).start(stack))
        session = Session(self._tasks[0], self._shared)
        await session.ready
        self._tools = session.definitions
        await session.close()

    async def answer(self, request: JSONObject) -> JSONObject:
        """Return the answer to one line."""
        match request["do"]:
            case "tasks":
                start = request["start"]
                page = [_entry(task) for task in self._tasks[start : start + PAGE]]
                about = {"verifiers": __version__, "files": _files(type(self._taskset))}
                return {"tasks": page, "count": len(self._tasks), "tools": self._tools, **about}
            case "open":
                session = Session(self._task(request), self._shared)
                self._sessions[request["session"]] = session
                await session.ready
                return {"tools": session.definitions}
            case "call":
                text, ok = await self._sessions[request["session"]].call(
                    request["tool"], request["arguments"]
                )
                limit = request["max_chars"]
                if len(text) > limit:
                    text = f"{text[:limit]}\n... ({len(text):,} characters in all)"
                return {"text": text, "ok": ok}
            case "close":
                return {"state": await self._sessions.pop(request["session"]).close()}
            case "score":
                return await _score(self._task(request), request)
        raise ValueError(f"{request['do']!r} is no known request")

    def _task(self, request: JSONObject) -> Any:
        """Return the requested task, if it is unchanged since tasks were loaded."""
        number = request["number"]
        if number >= len(self._tasks) or self._tasks[number].hash != request["hash"]:
            raise Refused(f"task {number} has changed since the tasks were loaded")
        return self._tasks[number]


def _files(kind: type) -> dict[str, str]:
    """Return the SHA-256 of files in the folder of a taskset's class, by path."""
    file = Path(inspect.getfile(kind))
    package = (file.parent / "__init__.py").is_file()
    files = sorted(file.parent.rglob("*")) if package else [file]
    hashes = {}
    for path in files:
        if path.is_file() and "__pycache__" not in path.parts:
            hashes[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return hashes


def _requires_runtime(function: Any) -> bool:
    """Return whether a function has a parameter `runtime` without a default."""
    parameter = inspect.signature(function).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def _check(task: Any) -> None:
    """Refuse tasks with unsupported needs: a runtime, a judging model, control of every request."""
    kind = type(task)
    functions = (*task.hooks("metric"), *task.hooks("reward"))
    for function in functions:
        if _requires_runtime(function):
            raise Refused(f"it needs a runtime for the agent ({function.__name__})")
    if kind.NEEDS_CONTAINER:
        raise Refused("it needs a runtime for the agent (a container)")
    if kind.setup is not vf.Task.setup or kind.finalize is not vf.Task.finalize:
        raise Refused("its tasks prepare a runtime (setup or finalize), which is not supported")
    if task.config.judges:
        raise Refused("a model judges it (config.task.judges)")
    if discover_decorated(task, "intercept"):
        raise Refused("it changes requests (intercept)")
    if any(hook_boundary(fn, allow_trace=True) is not Trace for fn in task.hooks("stop")):
        raise Refused(
            "it stops at single requests or replies; only stops that read the trace are supported"
        )
    if not task.hooks("reward"):
        raise Refused("its tasks have no reward")


def _entry(task: Any) -> JSONObject:
    """Return a task for the host; `prompt` has the texts of system and user."""
    data = task.data
    system = [data.system_prompt] if data.system_prompt else []
    question: list[str] = []
    messages = data.prompt or []
    if isinstance(data.prompt, str):
        messages = [vf.UserMessage(content=data.prompt)]
    for message in messages:
        if not isinstance(message.content, str) or message.role not in ("system", "user"):
            raise Refused(f"the prompt of task {data.idx} has more than texts of system and user")
        (system if message.role == "system" else question).append(message.content)
    if not any(text.strip() for text in question):
        raise Refused(
            f"task {data.idx} has no prompt: a user opens the conversation, which is not supported"
        )
    own = data.model_dump(
        mode="json", include=set(type(data).model_fields) - set(vf.TaskData.model_fields)
    )
    # Without an answer the taskset's own fields are shown as gold; its rules grade either way.
    answer = own.get("answer")
    if not isinstance(answer, str) or not answer.strip():
        answer = json.dumps(own, sort_keys=True)
    return {
        "name": data.name or data.id or "",
        "system": "\n\n".join(system),
        "question": "\n\n".join(question),
        "gold": answer,
        "hash": task.hash,
    }


async def _score(task: Any, request: JSONObject) -> JSONObject:
    """Return the taskset's own score of a trace rebuilt call by call."""
    trace: Any = Trace(
        task=TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        state=state_cls(type(task)).model_validate(request["state"] or {}),
        agent=AgentInfo(config=AgentConfig()),
    )
    tools = [vf.Tool.model_validate(result) for result in request["tools"]]
    conversation = _opening(task.data)
    for call in request["calls"]:
        stopped = [fn.__name__ for fn in task.hooks("stop") if await call_hook(fn, {Trace: trace})]
        if stopped:
            trace.stop(stopped[0])
            break
        conversation = [*conversation, *map(MESSAGE.validate_python, call["before"])]
        reply = MESSAGE.validate_python(call["reply"])
        response = vf.Response(
            id=call["id"],
            created=0,
            model=call["model"],
            message=reply,
            finish_reason=call["finish"],
        )
        node = graph.prepare_turn(trace, conversation, tools).commit(response)
        usage = None
        if call["tokens"] is not None:
            prompt_tokens, completion_tokens = call["tokens"]
            usage = vf.Usage(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)
        trace.calls.append(
            ModelCall(node=node, model=call["model"], finish_reason=call["finish"], usage=usage)
        )
        conversation.append(reply)
    trace.stop("agent_completed")
    await task.score(trace)
    rewards = {}
    for name, result in trace.rewards.items():
        # The value is of all rewards, so one without a score makes it meaningless.
        if result is None:
            raise ValueError(f"reward {name!r} returned nothing")
        rewards[name] = [result.score, result.weight]
    return {
        "value": trace.reward,
        "rewards": rewards,
        "metrics": {name: result for name, result in trace.metrics.items() if result is not None},
        "stopped": trace.stop_condition,
    }


def _opening(data: Any) -> list[Any]:
    """Return the first messages, as verifiers' own harness sends them."""
    system: list[object] = (
        [vf.SystemMessage(content=data.system_prompt)] if data.system_prompt else []
    )
    return system + (
        [vf.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else list(data.prompt)
    )


async def _serve(desk: Desk, say: Any) -> None:
    loop, lines = asyncio.get_running_loop(), asyncio.StreamReader(limit=64 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    await desk.start()
    running: set[asyncio.Task[None]] = set()

    async def respond(request: JSONObject) -> None:
        try:
            answer = await desk.answer(request)
        except Refused as refused:
            answer = {"fault": str(refused)}
        except Exception as error:
            cause = error.__cause__ or error
            answer = {"fault": f"{type(cause).__name__}: {cause}"[:300]}
        say({"id": request["id"], **answer})

    while line := await lines.readline():
        task = asyncio.create_task(respond(json.loads(line)))
        running.add(task)
        task.add_done_callback(running.discard)


def main(name: str, config: str, limit: str) -> None:
    """Answer requests until the input ends."""
    out = sys.stdout

    def say(answer: JSONObject) -> None:
        out.write(json.dumps(answer) + "\n")
        out.flush()

    with contextlib.redirect_stdout(sys.stderr):  # tasksets may print
        try:
            asyncio.run(_serve(Desk(name, json.loads(config), json.loads(limit)), say))
        except Refused as refused:
            raise SystemExit(str(refused)) from None
        except Exception as error:
            raise SystemExit(
                f"{type(error).__name__}: {' '.join(str(error).split())[:250]}"
            ) from None


if __name__ == "__main__":
    main(*sys.argv[1:])
