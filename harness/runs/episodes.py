"""Episodes: one flat row per rollout, and one row per transition."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.records import Attempt, CallFailure, Task, Transition, Verdict
from harness.runs.rows import Call, Episode
from harness.util.tool_calls import has_unread_call

TEXT_CHARS = 100_000
"""Most characters of an answer or a reply in a row; an agent or an endpoint may return millions."""
TALK_CHARS = 1_000_000
"""Most characters of the messages of a call, and of the tool calls of an episode."""


class _Kept:
    """The part of untrusted texts that a row keeps. Never used for token ids."""

    def __init__(self) -> None:
        self.cut: list[str] = []
        """Columns that were shortened."""

    def text(self, column: str, text: str | None) -> str | None:
        """Return the beginning of a text."""
        if text is not None and len(text) > TEXT_CHARS:
            self.cut.append(column)
            return text[:TEXT_CHARS]
        return text

    def records(self, column: str, records: Iterable[Mapping[str, object]]) -> str:
        """Return JSON of the first records, and of the beginnings of the next one's values."""
        whole = list(records)
        text = json.dumps(whole, ensure_ascii=False)
        if len(text) <= TALK_CHARS:
            return text
        self.cut.append(column)
        # Values are shortened before they become JSON: JSON that is cut off cannot be read again.
        room = [TALK_CHARS]
        shortened: list[dict[str, Any]] = []
        for record in whole:
            if room[0] <= 0:
                break
            shortened.append({key: _beginning(value, room) for key, value in record.items()})
        return json.dumps(shortened, ensure_ascii=False)


def _beginning(value: object, room: list[int]) -> Any:
    """Shorten plain data to the characters left in `room`, and subtract its size from them."""
    if isinstance(value, str):
        beginning = value[: max(0, room[0])]
        room[0] -= len(beginning)
        return beginning
    # Empty containers and numbers count too: millions of them would fill a row without any text.
    room[0] -= 2
    if isinstance(value, Mapping):
        shortened = {}
        for key, item in value.items():
            if room[0] <= 0:
                break
            short_key = _beginning(key, room)
            shortened[short_key] = _beginning(item, room)
        return shortened
    if isinstance(value, list | tuple):
        return [_beginning(item, room) for item in value if room[0] > 0]
    return value


@dataclass
class _Sums:
    """Sums over an attempt's calls, for its row."""

    with_tools: int = 0
    parsed: int = 0
    unread: int = 0
    empty: int = 0
    overridden: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    trained: int = 0
    trained_tokens: int = 0
    text_elsewhere: str = ""
    """The first such field of any call."""
    served_models: dict[str, None] = field(default_factory=dict)
    """Each name once: there is one, unless the policy changed during the rollout."""


def _sums(calls: Iterable[Transition], paid: Mapping[int, float]) -> _Sums:
    """Return the sums over calls, of which the paid ones were trained."""
    sums = _Sums()
    for call in calls:
        sums.with_tools += bool(call.offered_tools)
        sums.parsed += len(call.parsed_calls)
        sums.unread += has_unread_call(call)
        sums.empty += call.empty
        sums.overridden += bool(call.overridden)
        # Endpoints without counts are usual; their calls count as no tokens here.
        sums.prompt_tokens += call.prompt_tokens or 0
        sums.response_tokens += call.response_tokens or 0
        sums.text_elsewhere = sums.text_elsewhere or call.text_elsewhere
        if call.index in paid:
            sums.trained += 1
            sums.trained_tokens += len(call.response_ids or ())
        if call.served_model:
            sums.served_models[call.served_model] = None
    return sums


def episode_row(
    task: Task,
    attempt: Attempt,
    reward: Verdict,
    *,
    reward_version: str,
    agent: str,
    phase: str,
    step: int,
    session: int,
    paid: Mapping[int, float],
    first_answer: str | None = None,
    first_reward: float | None = None,
    rewrites: int = 0,
    used_reward: float | None = None,
    meaning: str | None = None,
) -> Episode:
    """Return the flat row of one rollout.

    Args:
        paid: Reward of each trained call in the training, by its index.
    """
    kept = _Kept()
    sums = _sums(attempt.transitions, paid)
    # A call that failed in the end may have waited for a limited rate before.
    everything: list[Transition | CallFailure] = [*attempt.transitions, *attempt.failures]
    return {
        "step": step,
        "phase": phase,
        "session": session,
        "rollout_id": attempt.rollout_id,
        "attempt_id": attempt.attempt_id,
        "task_id": task.id,
        "cluster": task.cluster,
        "difficulty": task.difficulty,
        "question": task.question,
        "agent": agent,
        "outcome": attempt.outcome,
        "detail": attempt.detail,
        "answer": kept.text("answer", attempt.answer),
        "reward": reward.value,
        "used_reward": used_reward,
        "reward_reason": reward.reason,
        "reward_flags": list(reward.flags),
        "reward_version": reward_version,
        "reward_parts": json.dumps(dict(reward.parts)) if reward.parts else None,
        "reward_by_role": json.dumps(dict(reward.by_role)) if reward.by_role else None,
        "executed": reward.executed,
        "meaning": meaning,
        "first_answer": kept.text("first_answer", first_answer),
        "first_reward": first_reward,
        "calls": len(attempt.transitions) + len(attempt.failures),
        "failed_calls": len(attempt.failures),
        "failure_codes": json.dumps(Counter(call.code for call in attempt.failures)),
        "calls_with_tools": sums.with_tools,
        "parsed_calls": sums.parsed,
        "unread_calls": sums.unread,
        "empty_replies": sums.empty,
        "text_elsewhere": sums.text_elsewhere,
        "served_models": ", ".join(sums.served_models),
        "rate_limits": sum(call.rate_limits for call in everything),
        "rate_limit_s": sum(call.rate_limit_s for call in everything),
        "rewrites": rewrites,
        "transitions": len(attempt.transitions),
        "trained_transitions": sums.trained,
        "trained_tokens": sums.trained_tokens,
        "prompt_tokens": sums.prompt_tokens,
        "response_tokens": sums.response_tokens,
        "overridden_calls": sums.overridden,
        "call_roles": [call.role for call in attempt.transitions],
        "by_role": json.dumps(list(roles(attempt, reward, paid))),
        "tool_calls": kept.records("tool_calls", map(asdict, attempt.tool_calls)),
        "cut": kept.cut,
        "started_s": attempt.started_s,
        "elapsed_s": attempt.elapsed_s,
    }


def roles(
    attempt: Attempt, reward: Verdict, paid: Mapping[int, float]
) -> Iterator[Mapping[str, object]]:
    """Summarize each role of an attempt, in the order of first calls.

    Args:
        paid: As in `episode_row`.

    Returns:
        `role`; `calls` with an answer, `failed_calls` without one, `cut` calls with a reply that
        reached the token limit; `prompt_tokens` and `response_tokens` in total, None if the
        endpoint did not report them; the number of `trained` calls, and the sum that they were
        `paid`; the `reward`'s own value of the role, None if it gives none.
    """
    answered: dict[str, list[Transition]] = {}
    for call in attempt.transitions:
        answered.setdefault(call.role, []).append(call)
    failed = Counter(failure.role for failure in attempt.failures)
    # A role without any answer has a summary too, after the others.
    for role in dict.fromkeys([*answered, *failed]):
        calls = answered.get(role, [])
        given = []
        cut = 0
        for call in calls:
            cut += call.finish_reason == "length"
            if call.index in paid:
                given.append(paid[call.index])
        yield {
            "role": role,
            "calls": len(calls),
            "failed_calls": failed[role],
            "cut": cut,
            "prompt_tokens": _sum([call.prompt_tokens for call in calls]),
            "response_tokens": _sum([call.response_tokens for call in calls]),
            "trained": len(given),
            "paid": sum(given),
            "reward": reward.by_role.get(role),
        }


def _sum(counts: Sequence[int | None]) -> int | None:
    total = 0
    for count in counts:
        # A sum of the known counts alone would look like the cost of the role.
        if count is None:
            return None
        total += count
    return total


def transition_rows(
    attempt: Attempt, *, phase: str, step: int, paid: Mapping[int, float]
) -> Iterable[Call]:
    """Return the rows of an attempt's calls.

    Args:
        paid: Reward of each trained call in the training, by its index.
    """
    for call in attempt.transitions:
        kept = _Kept()
        row: Call = {
            "step": step,
            "phase": phase,
            "rollout_id": call.rollout_id,
            "attempt_id": call.attempt_id,
            "index": call.index,
            "role": call.role,
            "trained": call.index in paid,
            "paid": paid.get(call.index),
            "response_id": call.response_id,
            "messages": kept.records("messages", call.messages),
            "response_text": kept.text("response_text", call.response_text) or "",
            "cut": kept.cut,
            "finish_reason": call.finish_reason,
            "prompt_ids": call.prompt_ids,
            "response_ids": call.response_ids,
            "logprobs": call.logprobs,
            "started_s": call.started_s,
            "latency_s": call.latency_s,
            "gateway_s": call.gateway_s,
        }
        if call.demonstrations:
            row["demonstrations"] = call.demonstrations
        yield row
