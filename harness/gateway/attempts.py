"""The attempts that the gateway knows, and the calls in progress in each."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Any

from harness.gateway.answers import Answer, StreamedAnswer
from harness.gateway.canonical import request_digest, shown_parameters
from harness.gateway.demonstrations import with_demonstrations
from harness.gateway.failures import Refusal, deadline_passed
from harness.gateway.protocols import Written
from harness.gateway.reply_forms import Names
from harness.gateway.settings import GatewaySettings
from harness.records import CallFailure, Demonstrations, Transition
from harness.util import clock
from harness.util.branches import caller, renumbered
from harness.util.tool_calls import offered

ENDED = ("client_disconnect", "attempt_closed", "upstream_timeout")
"""Codes of failures that can end a call at any time. The attempt's deadline has its own cause."""


def call_seed(seed: int, who: str, draw: int) -> int:
    """Return the 31-bit seed of one call, which does not depend on the engine that serves it.

    Args:
        seed: The rollout's.
        who: The role, with its branch.
        draw: Number of the caller's earlier calls.
    """
    digest = hashlib.sha256(f"{seed}/{who}/{draw}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


class AttemptLog:
    """One open attempt: its forced sampling, its deadline and its records."""

    def __init__(
        self,
        rollout_id: str,
        attempt_id: str,
        sampling: Mapping[str, Any],
        timeout_s: float,
        roles: frozenset[str],
        demonstrations: Demonstrations | None = None,
    ) -> None:
        self.rollout_id = rollout_id
        self.attempt_id = attempt_id
        self.sampling = sampling
        self.roles = roles
        self.demonstrations = demonstrations or {}
        self._until = time.monotonic() + timeout_s
        """Monotonic time: uvloop's clock does not advance while it serves a batch of events."""
        self.transitions: list[Transition] = []
        self.failures: list[CallFailure] = []
        self.calls: set[Call] = set()
        self.written = Written()
        self._arrivals = 0
        self._draws: Counter[str] = Counter()
        self._given_back: dict[str, list[int]] = {}
        """Heaps of the numbers of failed calls, by caller. The next calls reuse them."""

    @property
    def left_s(self) -> float:
        """Return the seconds until the deadline; negative after it."""
        return self._until - time.monotonic()

    def begin(self, role: str, branch: str = "") -> Call:
        """Register a call of `role` before its request is read."""
        call = Call(self, role, self._arrivals, branch)
        self._arrivals += 1
        self.calls.add(call)
        return call

    def draw(self, who: str) -> int:
        """Return the number of the caller's earlier calls, from which the call's seed is derived.

        A failed call returns its number, so that a retry samples with the same seed.
        """
        if free := self._given_back.get(who):
            return heappop(free)
        self._draws[who] += 1
        return self._draws[who] - 1

    def give_back(self, who: str, draw: int) -> None:
        """Make the number of a failed call available again: nothing was sampled with its seed."""
        heappush(self._given_back.setdefault(who, []), draw)

    def close(self) -> None:
        """End the calls in progress and sort the records by order of arrival."""
        for call in list(self.calls):
            call.abort(Refusal("attempt_closed", "the attempt was closed"))
        self.transitions = renumbered(self.transitions)
        self.failures.sort(key=lambda failure: failure.index)


class Call:
    """One call under way. Exactly one record comes of it: a transition or a failure."""

    def __init__(self, log: AttemptLog, role: str, index: int, branch: str = "") -> None:
        self.log = log
        self.role = role
        self.branch = branch
        self.who = caller(role, branch)
        self.index = index
        self.draw: int | None = None
        """None until the request is complete."""
        self.sampling: Mapping[str, Any] = log.sampling
        self.started_s = clock.now()
        self.upstream_s = 0.0
        self.model = ""
        self.messages: tuple[Mapping[str, Any], ...] = ()
        self.offered_tools: tuple[str, ...] = ()
        self.overridden: Mapping[str, Any] = {}
        self.parameters: Mapping[str, Any] = {}
        self.request_digest = ""
        self.demonstrations = 0
        """The number of demonstrations inserted into the request for the model server."""
        self.rate_limits = 0
        self.rate_limit_s = 0.0
        self.aborts = 0
        self.streamed: StreamedAnswer | None = None
        self.aborted_by: Refusal | None = None
        self.outcome = ""
        """How the call ended: `transition`, or a failure's code; empty while it is in progress."""
        self._began = time.perf_counter()
        self._task = asyncio.current_task()

    def ask(self, asked: Mapping[str, Any]) -> None:
        """Start the call once its request is complete: assign its seed and start its time limit.

        Args:
            asked: The request; empty if it came too late to be read.
        """
        self.messages = tuple(asked.get("messages", ()))
        if asked:
            self.offered_tools = offered(asked)
            parameters = {name: value for name, value in asked.items() if name != "messages"}
            self.parameters = shown_parameters(parameters)
            self.request_digest = request_digest(self.messages, parameters)
        # With the run's own seed, an agent that repeats a request would get the same answer.
        self.draw = self.log.draw(self.who)
        if (seed := self.log.sampling.get("seed")) is not None:
            self.sampling = {**self.log.sampling, "seed": call_seed(seed, self.who, self.draw)}
        self.started_s, self._began = clock.now(), time.perf_counter()

    def demonstrated(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the request for the model server: the agent's, with its role's demonstrations."""
        shown = self.log.demonstrations.get(self.role, ())
        messages = with_demonstrations(self.messages, shown)
        if messages is None:
            return asked
        self.demonstrations = len(shown)
        return {**asked, "messages": messages}

    def names(self, asked: Mapping[str, Any], model: str) -> Names:
        """Return default names for the call's answer, for fields that its server omits.

        Args:
            asked: The request.
            model: The model that receives it.
        """
        log = self.log
        return Names(
            call=f"{self.who}/{self.draw}",
            answer=f"{log.rollout_id}/{log.attempt_id}/{self.index}",
            model=model,
            functions=bool(asked.get("functions")),
        )

    def blamed(self, refusal: Refusal) -> Refusal:
        """Return the refusal to record: the agent is the cause if its request is incomplete."""
        if self.draw is None and refusal.code in ENDED:
            return Refusal("bad_request", f"the request was incomplete: {refusal}")
        return refusal

    def succeed(self, answer: Answer) -> None:
        """Record a transition."""
        latency_s = self._end("transition")
        self.log.transitions.append(
            Transition(
                rollout_id=self.log.rollout_id,
                attempt_id=self.log.attempt_id,
                index=self.index,
                role=self.role,
                response_id=answer.response_id,
                model=self.model,
                messages=self.messages,
                response_text=answer.text,
                finish_reason=answer.finish_reason,
                prompt_ids=answer.prompt_ids,
                response_ids=answer.response_ids,
                logprobs=answer.logprobs,
                prompt_tokens=answer.prompt_tokens,
                response_tokens=answer.response_tokens,
                sampling=self.sampling,
                overridden=self.overridden,
                started_s=self.started_s,
                latency_s=latency_s,
                gateway_s=max(0.0, latency_s - self.upstream_s),
                branch=self.branch,
                offered_tools=self.offered_tools,
                tool_calls=answer.tool_calls,
                parameters=self.parameters,
                request_digest=self.request_digest,
                text_elsewhere=answer.text_elsewhere,
                served_model=answer.served_model,
                rate_limits=self.rate_limits,
                rate_limit_s=self.rate_limit_s,
                demonstrations=self.demonstrations,
            )
        )

    def fail(self, refusal: Refusal) -> None:
        """Record a failure, unless the call already has a record."""
        if self.outcome:
            return
        latency_s = self._end(refusal.code)
        if self.draw is None:
            latency_s = 0.0  # no request was sent upstream
        else:
            # A call that is repeated after a failure samples as if there had been none.
            self.log.give_back(self.who, self.draw)
        detail = refusal.detail
        if refusal.code == "prompt_too_long" and self.demonstrations:
            detail = f"{detail} ({self.demonstrations} demonstrations were inserted)"
        self.log.failures.append(
            CallFailure(
                index=self.index,
                role=self.role,
                code=refusal.code,
                cause=refusal.cause,
                status=refusal.upstream_status,
                detail=detail,
                started_s=self.started_s,
                latency_s=latency_s,
                branch=self.branch,
                request_digest=self.request_digest,
                rate_limits=self.rate_limits,
                rate_limit_s=self.rate_limit_s,
            )
        )

    def abort(self, refusal: Refusal) -> None:
        """End the call from outside: record it, then cancel its task and so its upstream request.

        After the attempt's deadline, the deadline is always the recorded reason.
        """
        if self.outcome:
            return
        if self.log.left_s <= 0:
            refusal = deadline_passed()
        refusal = self.blamed(refusal)
        if self.streamed is not None and self.streamed.finished:
            # The model had completed its answer; only the end of the stream was missing.
            self.succeed(self.streamed.answer())
        else:
            self.fail(refusal)
        self.aborted_by = refusal
        if self._task is not None:
            self._task.cancel()

    def _end(self, outcome: str) -> float:
        self.outcome = outcome
        self.log.calls.discard(self)
        return time.perf_counter() - self._began


class Attempts:
    """Open attempts by (rollout, attempt), and the names of closed ones."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._open: dict[tuple[str, str], AttemptLog] = {}
        self._closed: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._remembered = settings.remembered_attempts
        self._linger_s = settings.linger_s
        self._sweep_at = 0.0

    def __len__(self) -> int:
        return len(self._open)

    def open(self, log: AttemptLog) -> None:
        """Register an attempt.

        Raises:
            Refusal: `attempt_exists`: the name is or was in use.
        """
        self._sweep()
        key = (log.rollout_id, log.attempt_id)
        # Never reuse the name of a closed attempt: its late calls would join the new one.
        if key in self._open or key in self._closed:
            raise Refusal(
                "attempt_exists", f"attempt {log.attempt_id!r} of {log.rollout_id!r} exists"
            )
        self._open[key] = log

    def get(self, rollout_id: str, attempt_id: str) -> AttemptLog:
        """Return an open attempt.

        Raises:
            Refusal: `attempt_closed` or `unknown_attempt`.
        """
        log = self._open.get((rollout_id, attempt_id))
        if log is None:
            raise self._missing(rollout_id, attempt_id)
        return log

    def close(self, rollout_id: str, attempt_id: str) -> AttemptLog:
        """Remove an attempt after ending its calls.

        Raises:
            Refusal: `attempt_closed` or `unknown_attempt`.
        """
        log = self._open.pop((rollout_id, attempt_id), None)
        if log is None:
            raise self._missing(rollout_id, attempt_id)
        # Bounded, since a gateway serves millions of attempts.
        self._closed[rollout_id, attempt_id] = None
        if len(self._closed) > self._remembered:
            self._closed.popitem(last=False)
        log.close()
        return log

    def _missing(self, rollout_id: str, attempt_id: str) -> Refusal:
        name = f"attempt {attempt_id!r} of rollout {rollout_id!r}"
        if (rollout_id, attempt_id) in self._closed:
            return Refusal("attempt_closed", f"{name} is closed")
        return Refusal("unknown_attempt", f"{name} is not registered")

    def _sweep(self) -> None:
        """Drop attempts that stay open because their runner died."""
        now = asyncio.get_running_loop().time()
        if now < self._sweep_at:
            return
        self._sweep_at = now + min(60.0, self._linger_s)
        for key, log in list(self._open.items()):
            if log.left_s < -self._linger_s:
                self.close(*key)
