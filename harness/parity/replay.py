"""Replay of one recorded rollout with the program's reference agent, without model or tools."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import httpx
import orjson

from harness.contracts.environments import EnvironmentSession, Observation
from harness.contracts.toolbox import Agent
from harness.errors import EnvironmentFault
from harness.gateway.canonical import request_digest, shown_parameters
from harness.gateway.client import agent_url
from harness.parity.comparison import Mismatch, first_difference, value_text
from harness.parity.recorder import RecordedCall, spoken_tool_call
from harness.records import JSON, Attempt, CallFailure, ToolCall, Transition
from harness.rollout.json_values import storable
from harness.rollout.request import RolloutRequest
from harness.rollout.tools import HostToolbox
from harness.util.branches import caller, in_order, parted

REPLAY_S = 10.0
"""Time limit of one replay in seconds; a longer one counts as not checked."""
_NEVER_CARRIED_OUT = ("unknown_tool", "bad_arguments")
_UNFINISHED = ("timeout", "environment_error", "runner_lost")


class _Stop(EnvironmentFault):
    """End of the replay: a difference was found, or the record ends."""


@dataclass
class _Replay:
    """One rollout's record, consumed by the reference's requests and tool calls."""

    attempt: Attempt
    difference: Mismatch | None = None
    cut: bool = False
    compared: int = 0
    _calls: dict[str, deque[Transition | CallFailure]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    _tools: list[ToolCall] = field(default_factory=list)

    def __post_init__(self) -> None:
        everything: list[Transition | CallFailure] = [
            *self.attempt.transitions,
            *self.attempt.failures,
        ]
        # Concurrent branches may call in any order; within one branch the order is fixed.
        for call in sorted(everything, key=lambda call: call.index):
            self._calls[caller(call.role, call.branch)].append(call)
        # The host refuses such calls itself, so the session never gets them.
        for tool_call in self.attempt.tool_calls:
            if tool_call.fault not in _NEVER_CARRIED_OUT:
                self._tools.append(tool_call)

    def differ(self, place: str, expected: object, got: object) -> None:
        """Store the first difference: the reference's action and the agent's."""
        if self.difference is None:
            self.difference = Mismatch(
                self.attempt.rollout_id, place, value_text(expected), value_text(got)
            )

    def answer(self, request: httpx.Request) -> httpx.Response:
        """Return the recorded answer to the agent's request, or stop."""
        who = unquote(request.url.raw_path.decode().split("/")[4])
        role, _ = parted(who)
        if self.difference is not None:
            raise _Stop("the replay has ended")
        if not self._calls[who]:
            # A rollout that was cut off may lack the calls that would have followed.
            if self.attempt.outcome in _UNFINISHED:
                self.cut = True
            else:
                self.differ(f"call {self.compared} ({role})", "a call", "no call")
            raise _Stop("the record has no further call")
        recorded = self._calls[who].popleft()
        self.compared += 1
        self._compare(recorded, orjson.loads(request.content))
        if self.difference is not None:
            raise _Stop("the requests differ")
        if isinstance(recorded, CallFailure):
            last = not any(self._calls.values())
            if recorded.cause == "deadline" or (last and self.attempt.outcome in _UNFINISHED):
                self.cut = True
                raise _Stop("the call was cut off")
            return httpx.Response(recorded.status or 502, json={"error": {"message": "replayed"}})
        message: dict[str, Any] = {"role": "assistant", "content": recorded.response_text}
        if recorded.tool_calls:
            message["tool_calls"] = list(recorded.tool_calls)
        choice = {"index": 0, "message": message, "finish_reason": recorded.finish_reason}
        return httpx.Response(200, json={"id": recorded.response_id, "choices": [choice]})

    def _compare(self, recorded: Transition | CallFailure, body: dict[str, Any]) -> None:
        messages = body.pop("messages")
        if recorded.request_digest == request_digest(messages, body):
            return
        where = f"call {recorded.index} ({recorded.role})"
        if isinstance(recorded, CallFailure):
            if recorded.request_digest:
                self.differ(f"{where} request", "the same bytes", "others, of a call that failed")
            return
        own_messages = [dict(message) for message in recorded.messages]
        mine = RecordedCall(recorded.role, own_messages, dict(recorded.parameters))
        base = RecordedCall(recorded.role, messages, shown_parameters(body))
        place, expected, got = first_difference(mine, base) or ("request", "", "other bytes")
        self.differ(f"{where} {place}", expected, got)

    def carry_out(self, tool: str, arguments: Mapping[str, JSON]) -> Observation:
        """Return the recorded observation of the same tool call, or stop."""
        for number, call in enumerate(self._tools):
            if call.tool == tool and dict(call.arguments) == dict(arguments):
                del self._tools[number]
                return Observation(call.text, call.ok)
        if self.attempt.outcome in _UNFINISHED:
            self.cut = True
        else:
            wanted = ToolCall(tool, arguments, "", True, 0.0, 0.0)
            # Only the next recorded call is shown: a whole list would hide the difference.
            recorded = spoken_tool_call(self._tools[0]) if self._tools else "no call"
            place = f"tool call after call {self.compared - 1}"
            self.differ(place, spoken_tool_call(wanted), recorded)
        raise _Stop("the record has no such tool call")

    def finish(self, answer: str | None, problem: str, tool_calls: Sequence[ToolCall]) -> None:
        """Compare the rest of the record after the end of the reference.

        Args:
            answer: The reference's answer; None if it raised.
            problem: The exception of the reference.
        """
        if self.difference is not None or self.cut:
            return
        unplayed: list[Transition | CallFailure] = []
        for calls in self._calls.values():
            unplayed += calls
        if unplayed:
            first = min(unplayed, key=lambda call: call.index)
            where = f"call {first.index} ({first.role})"
            self.differ(where, "no further call", f"{len(unplayed)} further calls")
            return
        executed = [spoken_tool_call(call) for call in tool_calls]
        recorded = [spoken_tool_call(call) for call in self.attempt.tool_calls]
        if executed != recorded:
            self.differ("tool calls", executed, recorded)
        elif self.attempt.outcome == "ok":
            if answer is None:
                self.differ("outcome", f"an error: {problem}", "an answer")
            elif answer != self.attempt.answer:
                self.differ("answer", answer, self.attempt.answer)
        elif answer is not None and self.attempt.outcome not in _UNFINISHED:
            got = f"{self.attempt.outcome} ({self.attempt.detail})"
            self.differ("outcome", "an answer", got)


class _RecordedTools(EnvironmentSession):
    def __init__(self, replay: _Replay) -> None:
        self._replay = replay

    async def call(self, tool: str, arguments: Mapping[str, JSON]) -> Observation:
        return self._replay.carry_out(tool, arguments)

    async def close(self) -> None:
        return None


async def check(
    reference: Agent, request: RolloutRequest, attempt: Attempt, model: str
) -> Mismatch | None:
    """Replay one recorded rollout and return its first difference, or None.

    Args:
        reference: The reference agent of the program.
        model: The model's name in the agent's requests.

    Raises:
        TimeoutError: The reference did not end within `REPLAY_S` seconds.
    """
    replay = _Replay(attempt)
    async with httpx.AsyncClient(transport=httpx.MockTransport(replay.answer)) as http_client:
        toolbox = HostToolbox(
            request=request,
            url=lambda role: agent_url("http://replay.invalid", "0", "0", role),
            key="replay",
            model=model,
            http_client=http_client,
        )
        toolbox.replay(_RecordedTools(replay))
        answer, problem = None, ""
        try:
            async with asyncio.timeout(REPLAY_S) as limit:
                answer = storable(await reference.solve(request.problem, toolbox))
        except Exception as error:
            if limit.expired():
                raise
            problem = f"{type(error).__name__}: {error}"
    calls = sorted(toolbox.tool_calls, key=lambda call: call.started_s)
    replay.finish(answer, problem, in_order(calls))
    return replay.difference
