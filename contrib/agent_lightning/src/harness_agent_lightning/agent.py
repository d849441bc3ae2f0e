"""Runs an agent of Agent Lightning, as it is, as an agent of harness."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import agentlightning as agl
from agentlightning.emitter import find_final_reward

from harness.contracts.toolbox import LAST_REPLY, Arguments, Toolbox
from harness.records import JSON, Problem
from harness_agent_lightning.tracing import REPORT, TRACER, activate

MAIN = "main_llm"
"""Resource name of the policy. Each role's model is also a resource, under the role's name."""
TOOLBOX = "toolbox"
"""Resource name of the environment's tools."""


class GatewayLLM(agl.ProxyLLM):
    """The policy as a resource of Agent Lightning, with a URL that names rollout, attempt and role.

    The URL also has the key, for agents that take theirs from elsewhere. The gateway accepts
    either.
    """

    def get_base_url(self, rollout_id: str | None = None, attempt_id: str | None = None) -> str:
        return str(self.endpoint)


class TaskFields(dict[str, Any]):
    """A task as an agent sees it: without gold, with a message for agents that read it."""

    def __missing__(self, key: str) -> Any:
        raise KeyError(
            f"{key!r} is no field of the task. Agents get no gold; there are: {', '.join(self)}"
        )


class ThreadTools:
    """The environment's tools for a synchronous rollout, which runs in a separate thread."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox
        self._loop = asyncio.get_running_loop()

    def execute(self, text: str) -> str:
        """Call the environment's first tool with its only argument; return the text to show."""
        return self._wait(self._toolbox.execute(text))

    def call(self, tool: str, arguments: Arguments) -> str:
        """Call a tool; return the text to show the model."""
        return self._wait(self._toolbox.call(tool, arguments))

    def __getattr__(self, name: str) -> Any:  # prompts, max_turns, tools, phase
        return getattr(self._toolbox, name)

    def _wait(self, work: Any) -> str:
        found: str = asyncio.run_coroutine_threadsafe(work, self._loop).result()
        return found


class Runner:
    """The agent's `self.runner`, with its tracer. A rollout of harness has no store."""

    tracer = TRACER


class LitRollouts:
    """Give each rollout its own object of the agent's class, not shared while in use.

    Args:
        make: Creates the agent. One from a decorator keeps no state of a rollout and serves all.
        roles: Names of its callers. The first is the default.
    """

    def __init__(self, make: Callable[[], agl.LitAgent[Any]], roles: Sequence[str]) -> None:
        activate()
        self.roles = tuple(roles)
        self._make = make
        self._runner = Runner()
        self._idle = [self._made()]

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        agent = self._idle.pop() if self._idle else self._made()
        REPORT.set((toolbox.report, self.roles))
        try:
            returned = await self._run(agent, problem, toolbox)
        except Exception:
            self._idle.append(agent)
            raise
        # After a cancellation a thread may still use the object, so that no other rollout gets it.
        self._idle.append(agent)
        if isinstance(returned, str):
            return returned
        reward = _reward(returned)
        if reward is not None:
            toolbox.report.reward = reward
        return LAST_REPLY

    def _made(self) -> agl.LitAgent[Any]:
        agent = self._make()
        agent.set_runner(self._runner)
        return agent

    async def _run(self, agent: agl.LitAgent[Any], problem: Problem, toolbox: Toolbox) -> Any:
        trains = toolbox.phase == "train"
        task = task_fields(problem, toolbox.payload)
        rollout = _rollout(task, toolbox.llm(self.roles[0]).base_url, toolbox.phase)
        resources: dict[str, Any] = {role: _llm(toolbox, role) for role in self.roles}
        resources[MAIN] = resources[self.roles[0]]
        if agent.is_async():
            resources[TOOLBOX] = toolbox
            method = agent.training_rollout_async if trains else agent.validation_rollout_async
            return await method(task, resources, rollout)
        resources[TOOLBOX] = ThreadTools(toolbox)
        run = agent.training_rollout if trains else agent.validation_rollout
        return await _in_thread(lambda: run(task, resources, rollout))


def task_fields(problem: Problem, payload: Mapping[str, JSON]) -> TaskFields:
    """Return a task as a dictionary: id, question, context, and the environment's payload.

    A task about a database also has the names of Spider's files: `db_id`, and `query`, which is
    None.
    """
    fields = TaskFields({**payload, **problem.context})
    fields |= {"id": problem.task_id, "question": problem.question}
    database = payload.get("database")
    if isinstance(database, str):
        fields |= {"db_id": Path(database).stem, "query": None}
    return fields


def _llm(toolbox: Toolbox, role: str) -> GatewayLLM:
    llm = toolbox.llm(role)
    scheme, _, rest = llm.base_url.partition("://")
    return GatewayLLM(
        endpoint=f"{scheme}://:{quote(llm.api_key, safe='')}@{rest}",
        model=llm.model,
        api_key=llm.api_key,
        sampling_parameters=dict(llm.sampling),
    )


def _rollout(task: TaskFields, base_url: str, phase: str) -> agl.AttemptedRollout:
    """Return Agent Lightning's rollout record; role URLs end in `/r/ROLLOUT/ATTEMPT/ROLE/v1`."""
    rollout_id, attempt_id = map(unquote, base_url.split("/")[-4:-2])
    now = time.time()
    attempt = agl.Attempt(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=1,
        start_time=now,
        status="running",
    )
    return agl.AttemptedRollout(
        rollout_id=rollout_id,
        input=task,
        start_time=now,
        mode="train" if phase == "train" else "val",
        status="running",
        attempt=attempt,
    )


def _reward(returned: Any) -> float | None:
    """Return the reward in what a rollout returned: a number, or spans; None where there is none.

    Raises:
        TypeError: It is neither, nor None.
    """
    if returned is None:
        return None
    if isinstance(returned, bool | int | float):
        return float(returned)
    if isinstance(returned, list):
        final: float | None = find_final_reward(returned)
        return final
    raise TypeError(
        f"the rollout returned {type(returned).__name__}. "
        "Return a reward, spans, None, or the answer as a text"
    )


async def _in_thread(work: Callable[[], Any]) -> Any:
    """Run blocking work in a new thread, without a limit on threads, with this task's context.

    The thread cannot be stopped. Once its attempt is closed, its model calls fail at once, and its
    result is dropped.
    """
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(set_: Callable[[Any], None], value: Any) -> None:
        if not done.done():
            set_(value)

    def run() -> None:
        try:
            result = context.run(work)
        except BaseException as error:
            outcome = (done.set_exception, _raisable(error))
        else:
            outcome = (done.set_result, result)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name="lit rollout", daemon=True).start()
    return await done


def _raisable(error: BaseException) -> BaseException:
    """Return an error that a future accepts. StopIteration and exit errors end only the rollout."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")
