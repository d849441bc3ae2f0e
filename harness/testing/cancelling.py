"""Cancel an agent at any step of its event loop, with a model and tools in the same process."""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import Context
from pathlib import Path
from typing import TypeVarTuple

import httpx
import orjson

from harness.contracts.environments import Observation
from harness.contracts.programs import Scenario
from harness.contracts.toolbox import Agent
from harness.errors import EnvironmentFault
from harness.mock_model.completion import ScriptedCompletion
from harness.mock_model.server import ReceivedRequest
from harness.parity.recorder import staged_request
from harness.plugins import program
from harness.records import JSON
from harness.rollout.request import RolloutRequest
from harness.rollout.tools import HostToolbox

Ts = TypeVarTuple("Ts")
FIRST_END_S = 60.0
"""Seconds for an episode that is not cancelled, in which a framework may load much."""
PROMPT_END_S = 2.0
"""Seconds that a cancelled agent may take to end."""
CANCELLATIONS = 8
"""Most cancellations of one kind of episode, spread evenly over its steps."""
STEPS_OF_A_CALL = 3
"""Steps of the loop that a call of the model or of a tool takes."""
NEVER = -1
"""A number that no step has."""


class SteppingLoop(asyncio.SelectorEventLoop):
    """An event loop that counts its steps and calls a function before one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self._at: int = NEVER
        self._action: Callable[[], object] = lambda: None

    def before(self, step: int, action: Callable[[], object]) -> None:
        """Count from 0 again, and call `action` before the step of that number."""
        self.steps, self._at, self._action = 0, step, action

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon(self._step, callback, args, context=context)

    def _step(self, callback: Callable[[*Ts], object], args: tuple[*Ts]) -> None:
        self.steps += 1
        if self.steps == self._at:
            self._action()
        callback(*args)


def faults_of_cancellations(agent: Agent, of: str, scenario: Scenario, folder: Path) -> list[str]:
    """Cancel an agent at many steps, each in an episode of its own; return what went wrong.

    The tools of some episodes work. Those of the others fail, so that an agent is also cancelled
    while a tool's exception ends it.

    Args:
        of: The agent's program.
        folder: Where the scenario's files are written.
    """
    request = staged_request(of, scenario, folder, timeout_s=30.0)
    faults = []
    # What an episode leaves stays in young generations, which are cheap to collect.
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=SteppingLoop) as runner:
            for tools_fail in (False, True):
                play = _Play(of, scenario, request, tools_fail)
                for fault in _swept(play, agent, runner):
                    faults.append(f"{fault}; tools {'fail' if tools_fail else 'work'}")
    finally:
        gc.enable()
    return faults


def _swept(play: _Play, agent: Agent, runner: asyncio.Runner) -> Iterator[str]:
    """Yield what went wrong, and before which step the agent was cancelled."""
    # Twice, since some frameworks load more in their first episode.
    for _ in range(2):
        if fault := runner.run(play.cancelled_before(NEVER, agent)) or play.unusual_end():
            yield f"{fault}; not cancelled"
            return
    steps = play.steps
    for step in range(1, steps + 1, math.ceil(steps / CANCELLATIONS)):
        if fault := runner.run(play.cancelled_before(step, agent)):
            yield f"{fault}; cancelled before step {step} of {steps}"


class _Play:
    """The model and the tools of a scenario.

    Attributes:
        steps: Steps of the loop that the last episode took.
        raised: Exception that ended the agent in the last episode; None if it returned.
    """

    def __init__(
        self, of: str, scenario: Scenario, request: RolloutRequest, tools_fail: bool
    ) -> None:
        self._of, self._scenario = of, scenario
        self._request, self._tools_fail = request, tools_fail
        self._calls = 0
        self.steps = 0
        self.raised: BaseException | None = None

    def unusual_end(self) -> str:
        """Return how the last episode, which was not cancelled, differs from a usual one, or ""."""
        # Some frameworks replace a tool's exception by their own.
        if self.raised is not None and not self._tools_fail:
            return f"raised {self.raised!r}"
        if not self._calls:
            return "called neither the model nor a tool with the toolbox's client"
        return ""

    async def cancelled_before(self, step: int, agent: Agent) -> str:
        """Play an episode and cancel the agent before a step; return what went wrong, or ""."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SteppingLoop)
        lost: list[str] = []
        loop.set_exception_handler(
            lambda _, what: lost.append(f"{what['message']}: {what.get('exception')!r}")
        )
        self._script = program(self._of).script(self._scenario)
        async with httpx.AsyncClient(transport=httpx.MockTransport(self._answer)) as client:
            fault = await self._ended(loop, step, agent, client)
        gc.collect(1)  # reports exceptions of tasks that were never retrieved
        if lost:
            return fault or f"left an exception that no code retrieved: {lost}"
        return fault

    async def _ended(
        self, loop: SteppingLoop, step: int, agent: Agent, client: httpx.AsyncClient
    ) -> str:
        toolbox = HostToolbox(
            request=self._request,
            url=lambda role: f"http://scripted.invalid/{role}/v1",
            key="sk-scripted",
            model="scripted",
            http_client=client,
        )
        toolbox.replay(self)
        before = asyncio.all_tasks()
        work = asyncio.ensure_future(agent.solve(self._request.problem, toolbox))
        cancelled: list[bool] = []
        loop.before(step, lambda: cancelled.append(work.cancel()))
        wait_s = FIRST_END_S if step == NEVER else PROMPT_END_S
        done, _ = await asyncio.wait({work}, timeout=wait_s)
        self.steps = loop.steps
        loop.before(NEVER, list)  # keeps nothing of the episode alive
        if not done:
            return f"still running after {wait_s:g} s"
        raised = self.raised = None if work.cancelled() else work.exception()
        asked = True in cancelled  # not if it had ended before
        # A tool may have raised already; its exception then ends the agent as well.
        if asked and not work.cancelled() and not isinstance(raised, EnvironmentFault):
            return f"swallowed its cancellation: {raised or f'it returned {work.result()!r}'}"
        calls, began = self._calls, time.monotonic()
        while left := asyncio.all_tasks() - before - {work}:
            if time.monotonic() - began > PROMPT_END_S:
                return f"left running: {left}"
            await asyncio.sleep(0)
        if asked and self._calls != calls:
            return "called the model or a tool after its cancellation"
        return ""

    async def _answer(self, sent: httpx.Request) -> httpx.Response:
        body = orjson.loads(await sent.aread())
        await self._in_flight()
        reply = self._script(
            ReceivedRequest(self._calls, 0, "", sent.url.path, {}, sent.content, body)
        )
        if reply.status != 200:
            return httpx.Response(reply.status, json={"error": {"message": reply.text}})
        completion = ScriptedCompletion("scripted", body, reply, token_ids=False)
        if not body.get("stream"):
            # A stream can be passed on as raw bytes as well.
            whole = httpx.ByteStream(orjson.dumps(completion.whole()))
            return httpx.Response(200, stream=whole, headers={"content-type": "application/json"})
        events = [b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in completion.chunks()]
        stream = httpx.ByteStream(b"".join([*events, b"data: [DONE]\n\n"]))
        return httpx.Response(200, stream=stream, headers={"content-type": "text/event-stream"})

    async def call(self, tool: str, arguments: Mapping[str, JSON]) -> Observation:
        """Return the tool's result, or raise."""
        await self._in_flight()
        if self._tools_fail:
            raise EnvironmentFault("no session is open")
        return Observation("id\n1")

    async def close(self) -> None:
        """Do nothing."""

    async def _in_flight(self) -> None:
        self._calls += 1
        for _ in range(STEPS_OF_A_CALL):
            await asyncio.sleep(0)
