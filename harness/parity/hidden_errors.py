"""Detect errors of the model server that an agent did not raise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness.records import Attempt, CallFailure, ToolCall, Transition

LET_OUT = "let errors out"


def swallowed_error(attempt: Attempt) -> str:
    """Return what an agent did after a failed call; empty if the error ended the attempt.

    An agent may repeat such a call, although the host repeats failed attempts, or treat the error's
    text as a reply.
    """
    failed = [failure for failure in attempt.failures if _of_the_server(failure)]
    for failure in sorted(failed, key=lambda failure: failure.index):
        later = list(_later(attempt, failure))
        if not later:
            continue
        status = "no answer" if failure.status is None else f"HTTP {failure.status}"
        what = f"call {failure.index} ({failure.role}) got {status}"
        if _sent_again(failure, later):
            return (
                f"{what} and the agent sent it again. The host repeats a failed attempt: "
                "set the client's retries to 0"
            )
        return f"{what} and the agent went on with the error's text: {LET_OUT}"
    return ""


def _of_the_server(failure: CallFailure) -> bool:
    """Return whether the server failed the call; the agent causes 400 and similar statuses."""
    return failure.cause == "policy_server" or failure.code in (
        "upstream_status",
        "prompt_too_long",
    )


def _sent_again(failure: CallFailure, later: Iterable[Transition | CallFailure | ToolCall]) -> bool:
    """Return whether a later call has the same request as a failed one."""
    # A call that failed before its request was read has no digest, and is equal to no other.
    if not failure.request_digest:
        return False
    calls = [step for step in later if not isinstance(step, ToolCall)]
    return any(call.request_digest == failure.request_digest for call in calls)


def _later(attempt: Attempt, failure: CallFailure) -> Iterator[Transition | CallFailure | ToolCall]:
    """Yield what the same member of a team did after a failed call, or who waits for it."""
    calls: list[Transition | CallFailure] = [*attempt.transitions, *attempt.failures]
    for call in calls:
        if call.index > failure.index and call.branch in ("", failure.branch):
            yield call
    ended_s = failure.started_s + failure.latency_s
    for tool_call in attempt.tool_calls:
        if tool_call.started_s >= ended_s and tool_call.branch in ("", failure.branch):
            yield tool_call
