"""Run one attempt at a rollout: enforce its deadline and determine its outcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from harness.contracts.toolbox import Agent, LastReply, Report
from harness.plugins import program
from harness.records import Attempt, CallFailure, Outcome, ToolCall, Transition
from harness.rollout.json_values import storable
from harness.rollout.reports import read_report
from harness.rollout.request import RolloutRequest
from harness.rollout.tools import HostToolbox
from harness.util import clock
from harness.util.branches import in_order
from harness.util.deadlines import DeadlinePassed, Raised, within
from harness.util.intervals import covered_s

if TYPE_CHECKING:
    import httpx

    from harness.gateway.client import GatewayControl

TOO_LONG = ("prompt_too_long", "body_too_large")
"""Codes of failed calls with an overlong prompt. A run's limit on request bodies is larger than
any prompt that fits.
"""

DETAIL_CHARS = 500
"""Longest `detail` of an attempt."""


@dataclass(eq=False)
class UnderWay:
    """An attempt in progress in this process.

    Attributes:
        started_s: Unix time.
        tool_calls: Its tool calls so far.
        ends: Its deadline, by the monotonic clock.
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
        """Return the attempt in progress if there is exactly one."""
        return next(iter(cls._all)) if len(cls._all) == 1 else None


UNDER_WAY: ContextVar[UnderWay] = ContextVar("harness_under_way")
"""The attempt to which the current task or thread belongs."""


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
    """Run one attempt to its end, whatever the agent does.

    Never raises for anything the agent or endpoint did.

    The environment's session is open during the attempt and is closed whatever the outcome. The
    deadline starts after the environment has loaded the data that attempts share.
    """
    toolbox = HostToolbox(
        request=request,
        url=lambda role: control.agent_url(rollout_id, attempt_id, role),
        key=key,
        model=model,
        http_client=http_client,
    )
    await toolbox.prepare()
    started, ended = clock.now(), _Ended()
    try:
        await toolbox.open(f"{rollout_id}/{attempt_id}")
        ended.began_s = clock.now()
        if not toolbox.fault:
            one = UnderWay(
                rollout_id, attempt_id, request.timeout_s, ended.began_s, toolbox.tool_calls
            )
            await _play(agent, toolbox, one, control, ended)
    finally:
        broken = toolbox.fault
        # Shielded: a rollout that is cancelled must not leave its session open.
        await asyncio.shield(toolbox.close())
    outcome, detail = _judge(request, ended)
    # A fault while closing matters only if the final state decides: other failures are the agent's.
    if broken or (toolbox.fault and outcome in ("ok", "timeout")):
        outcome, detail = "environment_error", toolbox.fault
    report, wrong = read_report(toolbox.report)
    if wrong and outcome == "ok":
        outcome, detail = "agent_error", wrong[:DETAIL_CHARS]
    ended.name_roles(report, agent.roles)
    attempt = Attempt(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        outcome=outcome,
        detail=detail,
        answer=_answer(request, ended) if outcome == "ok" else None,
        transitions=tuple(ended.transitions),
        failures=tuple(ended.failures),
        tool_calls=tuple(in_order(sorted(toolbox.tool_calls, key=lambda call: call.started_s))),
        started_s=started,
        elapsed_s=clock.now() - started,
        state=toolbox.state,
        reported=report.reward,
    )
    if outcome == "ok" and ended.in_last_reply:
        return replace(attempt, answer=_answer_of_last_reply(request, attempt))
    return attempt


def _answer(request: RolloutRequest, ended: _Ended) -> str | None:
    """Return the answer in the text that the agent returned, as read by its program."""
    if ended.answer is None:
        return None
    return program(request.program).read_answer(ended.answer)


def _answer_of_last_reply(request: RolloutRequest, attempt: Attempt) -> str:
    """Return the answer in the last reply of an attempt, as read by its program."""
    turns = program(request.program).turns(replace(attempt, answer=None))
    read = turns[-1].answer if turns else None
    if read is not None:
        return read
    return program(request.program).read_answer(attempt.transitions[-1].response_text.strip())


@dataclass
class _Ended:
    """How an agent's attempt ended.

    Attributes:
        began_s: Unix time of the agent's start.
        in_last_reply: Whether to read the answer from the last reply.
        problem: Outcome and detail if the agent gave no answer.
    """

    began_s: float = 0.0
    answer: str | None = None
    in_last_reply: bool = False
    problem: tuple[Outcome, str] | None = None
    transitions: list[Transition] = field(default_factory=list)
    failures: list[CallFailure] = field(default_factory=list)

    def name_roles(self, report: Report, roles: Sequence[str]) -> None:
        """Give calls the roles that the agent reported for them; ignore unknown roles."""
        for position, call in enumerate(self.transitions):
            role = report.roles.get(call.response_id, call.role)
            if role in roles:
                self.transitions[position] = replace(call, role=role)
        for position, failure in enumerate(self.failures):
            role = report.roles.get(failure.request_id, failure.role)
            if role in roles:
                self.failures[position] = replace(failure, role=role)


async def _play(
    agent: Agent, toolbox: HostToolbox, one: UnderWay, control: GatewayControl, ended: _Ended
) -> None:
    """Run the agent until its answer or its deadline, with the attempt open at the gateway."""
    request = toolbox.request
    await control.open_attempt(
        one.rollout_id,
        one.attempt_id,
        sampling=request.sampling,
        timeout_s=request.timeout_s,
        roles=agent.roles,
        demonstrations=request.demonstrations,
    )

    async def solved() -> str:
        found: Any = await agent.solve(request.problem, toolbox)
        if not issubclass(type(found), str):
            raise TypeError(f"solve returned {type(found).__name__}, not str")
        ended.in_last_reply = isinstance(found, LastReply)
        return storable(found)

    try:
        with one:
            ended.answer = await within(request.timeout_s, solved, toolbox.broken)
    except DeadlinePassed:
        ended.problem = ("timeout", f"no answer within {request.timeout_s:g} s")
    except Raised as error:
        ended.problem = ("agent_error", str(error)[:DETAIL_CHARS])
    finally:
        ended.transitions, ended.failures = await asyncio.shield(
            control.close_attempt(one.rollout_id, one.attempt_id)
        )


def _judge(request: RolloutRequest, ended: _Ended) -> tuple[Outcome, str]:
    """Return the outcome and its detail.

    Failed calls count against the endpoint only if the agent did not cause them.
    """
    problem, transitions, failures = ended.problem, ended.transitions, ended.failures
    # A failed call that was followed by an answered one did not end the attempt.
    final: list[CallFailure] = []
    for failure in failures:
        if not any(_recovered(failure, call) for call in transitions):
            final.append(failure)
    excused = [failure for failure in final if failure.cause != "agent"]
    last = max(excused or final, key=lambda failure: failure.index, default=None)
    detail = ""
    if last is not None:
        detail = f"{last.role}: {last.status or 'no answer'}: {last.detail}"[:DETAIL_CHARS]
    # At the deadline the gateway may end the call a moment before the host's own timer fires.
    own_timer = problem is not None and problem[0] == "timeout"
    if own_timer or "deadline" in [failure.cause for failure in excused]:
        outcome = _late(request, ended.began_s, transitions, failures)
        return outcome, detail if excused or not problem else problem[1]
    if excused:
        return "endpoint_error", detail
    if last is not None and last.code in TOO_LONG:
        return "prompt_too_long", detail
    if problem is not None:
        # A framework's error message often omits the server's answer.
        refused = last is not None and last.status is not None
        return problem if not refused else (problem[0], f"{detail} ({problem[1]})"[:DETAIL_CHARS])
    if not transitions:
        return "no_transitions", "the agent answered without calling the model"
    return "ok", ""


def _recovered(failure: CallFailure, call: Transition) -> bool:
    """Return whether an answer followed a failed call, in its branch or in the main one."""
    return call.index > failure.index and (not call.branch or call.branch == failure.branch)


def _late(
    request: RolloutRequest,
    started_s: float,
    transitions: list[Transition],
    failures: list[CallFailure],
) -> Outcome:
    """Return the outcome after a deadline, by who used up the time.

    It is an `endpoint_error` if calls, at most as many as turns take, were in progress for at least
    half of the time since the first one.
    """
    calls: list[Transition | CallFailure] = [*transitions]
    # Failures that the agent caused do not count as the endpoint's time.
    calls += [failure for failure in failures if failure.cause != "agent"]
    if not calls or len(calls) > program(request.program).most_calls(request.max_turns):
        return "timeout"
    # Time before the first call is the agent's own.
    asking_s = started_s + request.timeout_s - min(call.started_s for call in calls)
    answering_s = covered_s((call.started_s, call.started_s + call.latency_s) for call in calls)
    return "endpoint_error" if answering_s >= asking_s / 2 else "timeout"
