"""The host's side of one attempt: the toolbox an agent gets, its deadline, and how its end is judged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from harness import clock
from harness.deadlines import DeadlinePassed, Raised, within
from harness.environments import EnvironmentSession, Observation, Tool
from harness.errors import EnvironmentFault
from harness.plugins import environment, program
from harness.records import JSON, Attempt, CallFailure, Outcome, ToolCall, ToolFault, Transition
from harness.rollout.plain import misfit, parsed, plain_state, storable
from harness.rollout.request import RolloutRequest
from harness.toolbox import LLM, Agent

if TYPE_CHECKING:
    import httpx

    from harness.gateway.client import GatewayControl

TOOL_GRACE_S = 2.0
"""How long a tool may take beyond its own deadline before it is left to itself."""
OPEN_S, CLOSE_S = 30.0, 10.0
"""How long an environment may take to open and to close a session, beside the agent's own time."""


@dataclass(eq=False)
class UnderWay:
    """An attempt under way in this process.

    Attributes:
        started_s: Unix time.
        tool_calls: So far.
        ends: When its deadline is, by the monotonic clock.
    """

    rollout_id: str
    attempt_id: str
    timeout_s: float
    started_s: float
    tool_calls: list[ToolCall] = field(default_factory=list)
    ends: float = field(init=False)
    _all: ClassVar[set[UnderWay]] = set()

    def __post_init__(self) -> None:
        self.ends = time.monotonic() + self.timeout_s

    def __enter__(self) -> None:
        self._all.add(self)
        self._token = UNDER_WAY.set(self)

    def __exit__(self, *_: object) -> None:
        self._all.discard(self)
        UNDER_WAY.reset(self._token)

    @classmethod
    def only(cls) -> UnderWay | None:
        """The one that is under way, where it is alone."""
        return next(iter(cls._all)) if len(cls._all) == 1 else None


UNDER_WAY: ContextVar[UnderWay] = ContextVar("harness_under_way")
"""The attempt that this task, or thread, works for."""


@dataclass
class HostToolbox:
    """The toolbox of one attempt; notes every call of a tool, carried out in the attempt's own session.

    Attributes:
        fault: Of the environment, once it had one: no call goes there any more, and the attempt is not judged.
        state: What the session left behind, once it is closed.
    """

    request: RolloutRequest
    url: Callable[[str], str]
    """From a role to its base URL."""
    key: str
    model: str
    http_client: httpx.AsyncClient
    tool_calls: list[ToolCall] = field(default_factory=list)
    fault: str = field(default="", init=False)
    state: Mapping[str, JSON] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._environment = environment(self.request.environment)
        self._session: EnvironmentSession | None = None
        self.broken: asyncio.Future[None] | None = None  # done once the environment has a fault
        self.tools: Sequence[Tool] = self._environment.tools_for(self.request.payload)
        self.prompts: Any = program(self.request.program).prompts_for(self.tools)

    async def open(self, attempt: str) -> None:
        """Open the session of an attempt, by an id of its own, or note why there is none."""
        self.broken = asyncio.get_running_loop().create_future()

        async def opened() -> None:  # kept as soon as it is there, whoever is cancelled then
            self._session = await self._environment.open(self.request.payload, attempt)

        try:
            await within(OPEN_S, opened)
        except (DeadlinePassed, Raised) as error:
            self._note(error, f"opened no session within {OPEN_S:g} s")

    async def close(self) -> None:
        """Close the session and keep the state that it leaves behind."""
        if self._session is None:
            return
        try:
            self.state = plain_state(await within(CLOSE_S, self._session.close))
        except (DeadlinePassed, Raised, ValueError, TypeError, RecursionError) as error:
            self._note(error, f"did not close its session within {CLOSE_S:g} s")

    def _note(self, error: Exception, late: str) -> None:
        """Keep the first fault of the environment, in a line."""
        told: BaseException = error.__cause__ if isinstance(error.__cause__, EnvironmentFault) else error
        said = late if isinstance(error, DeadlinePassed) else " ".join(str(told).split())
        self.fault = self.fault or storable(f"environment {self.request.environment!r}: {said}"[:500])

    @property
    def max_turns(self) -> int:
        return self.request.max_turns

    def llm(self, role: str) -> LLM:
        # The rest is the gateway's alone: not every framework has a place for it.
        own = ("seed", "chat_template_kwargs")
        sampling = {name: value for name, value in self.request.sampling.items() if name not in own}
        return LLM(self.url(role), self.key, self.model, sampling, self.request.timeout_s)

    async def execute(self, text: str) -> str:
        tool = self.tools[0]
        (name,) = tool.parameters["properties"]
        return await self.call(tool.name, {name: text})

    async def call(self, tool: str, arguments: Mapping[str, Any] | str) -> str:
        began, started_s = time.monotonic(), clock.now()
        tool = storable(tool)
        given, seen, fault = await self._call(tool, arguments)
        elapsed_s = time.monotonic() - began
        self.tool_calls.append(ToolCall(tool, given, seen.text, seen.ok and not fault, started_s, elapsed_s, fault))
        return seen.text

    async def _call(
        self, tool: str, arguments: Mapping[str, Any] | str
    ) -> tuple[Mapping[str, Any], Observation, ToolFault]:
        given, wrong = parsed(arguments)
        found = next((one for one in self.tools if one.name == tool), None)
        if found is None:
            names = ", ".join(one.name for one in self.tools) or "none"
            return given, Observation(f"There is no tool {tool!r}. Tools: {names}.", False), "unknown_tool"
        wrong = wrong or misfit(given, found)
        if wrong:
            return given, Observation(f"The arguments of {tool} {wrong}.", False), "bad_arguments"
        if self.fault or self._session is None:
            raise EnvironmentFault(self.fault or "no session is open")
        limit_s = self.request.tool_timeout_s
        try:
            async with asyncio.timeout(limit_s + TOOL_GRACE_S):
                seen = await self._session.call(tool, given)
            return given, Observation(storable(seen.text), seen.ok), ""
        except EnvironmentFault as error:
            self._note(error, "")
            if self.broken is not None and not self.broken.done():
                self.broken.set_result(None)
            raise
        except TimeoutError:
            return given, Observation(f"{tool} gave no result within {limit_s:g} s.", False), "timeout"
        except Exception as error:
            return given, Observation(storable(f"{tool} failed: {type(error).__name__}: {error}"), False), "failed"


async def run_attempt(
    agent: Agent,
    request: RolloutRequest,
    rollout_id: str,
    attempt_id: str,
    control: GatewayControl,
    key: str,
    model: str,
    http_client: httpx.AsyncClient,
) -> Attempt:
    """Run one attempt to its end, whatever the agent does. Never raises for anything the agent or endpoint did.

    The environment's session is open for as long as the attempt lasts, and closed however it ends.
    """
    started = clock.now()
    toolbox = HostToolbox(
        request=request,
        url=lambda role: control.agent_url(rollout_id, attempt_id, role),
        key=key,
        model=model,
        http_client=http_client,
    )
    ended = _Ended()
    try:
        await toolbox.open(f"{rollout_id}/{attempt_id}")
        ended.began_s = clock.now()
        if not toolbox.fault:
            one = UnderWay(rollout_id, attempt_id, request.timeout_s, ended.began_s, toolbox.tool_calls)
            await _play(agent, toolbox, one, control, ended)
    finally:
        broken = toolbox.fault
        await asyncio.shield(toolbox.close())
    outcome, detail = _judge(request, ended)
    # Of a fault while closing: what else the agent did is wrong, whatever it left behind.
    if broken or (toolbox.fault and outcome in ("ok", "timeout")):
        outcome, detail = "environment_error", toolbox.fault
    return Attempt(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        outcome=outcome,
        detail=detail,
        answer=ended.answer if outcome == "ok" else None,
        transitions=tuple(ended.transitions),
        failures=tuple(ended.failures),
        tool_calls=tuple(sorted(toolbox.tool_calls, key=lambda call: call.started_s)),
        started_s=started,
        elapsed_s=clock.now() - started,
        state=toolbox.state,
    )


@dataclass
class _Ended:
    """What an agent's time came to.

    Attributes:
        began_s: Unix time.
        problem: How it ended, if not by an answer.
    """

    began_s: float = 0.0
    answer: str | None = None
    problem: tuple[Outcome, str] | None = None
    transitions: list[Transition] = field(default_factory=list)
    failures: list[CallFailure] = field(default_factory=list)


async def _play(agent: Agent, toolbox: HostToolbox, one: UnderWay, control: GatewayControl, ended: _Ended) -> None:
    """Have the agent answer, until its deadline, with the attempt open at the gateway."""
    request = toolbox.request
    await control.open_attempt(
        one.rollout_id,
        one.attempt_id,
        sampling=request.sampling,
        timeout_s=request.timeout_s,
        roles=agent.roles,
    )

    async def solved() -> str:
        found: Any = await agent.solve(request.problem, toolbox)
        if not issubclass(type(found), str):
            raise TypeError(f"solve returned {type(found).__name__}, not str")
        return storable(found)

    try:
        with one:
            ended.answer = await within(request.timeout_s, solved, toolbox.broken)
    except DeadlinePassed:
        ended.problem = ("timeout", f"no answer within {request.timeout_s:g} s")
    except Raised as error:
        ended.problem = ("agent_error", str(error)[:500])
    finally:
        ended.transitions, ended.failures = await asyncio.shield(control.close_attempt(one.rollout_id, one.attempt_id))


def _judge(request: RolloutRequest, ended: _Ended) -> tuple[Outcome, str]:
    """The outcome. What the agent itself brought about says nothing of the endpoint, and excuses nothing."""
    problem, transitions, failures = ended.problem, ended.transitions, ended.failures
    last_answer = max((call.index for call in transitions), default=-1)
    since = [failure for failure in failures if failure.index > last_answer]
    excused = [failure for failure in since if failure.cause != "agent"]
    last = max(excused or since, key=lambda failure: failure.index, default=None)
    detail = "" if last is None else f"{last.role}: {last.status or 'no answer'}: {last.detail}"[:500]
    # At the deadline the gateway may cut the call off a moment before the host's own timer fires.
    if (problem is not None and problem[0] == "timeout") or any(failure.cause == "deadline" for failure in excused):
        return _late(request, ended.began_s, transitions, failures), detail if excused or not problem else problem[1]
    if excused:
        return "endpoint_error", detail
    if last is not None and last.code == "prompt_too_long":
        return "prompt_too_long", detail
    if problem is not None:
        return problem
    if not transitions:
        return "no_transitions", "the agent answered without calling the model"
    return "ok", ""


def _late(
    request: RolloutRequest, started_s: float, transitions: list[Transition], failures: list[CallFailure]
) -> Outcome:
    """Who used up the time: the endpoint where half of it since the first call went into as few calls as turns take."""
    waited: list[Transition | CallFailure] = [
        *transitions,
        *(failure for failure in failures if failure.cause != "agent"),
    ]
    calls = [(call.started_s, call.latency_s) for call in waited]
    if not calls or len(calls) > program(request.program).most_calls(request.max_turns):
        return "timeout"
    asking_s = started_s + request.timeout_s - min(start for start, _ in calls)
    return "endpoint_error" if sum(latency for _, latency in calls) >= asking_s / 2 else "timeout"
