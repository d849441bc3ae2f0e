"""Summarize replies of policy servers: empty and missing ones, limited rates, changing models."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.runs.rows import Episode
from harness.runs.schema import Replies


def replies_of(rows: Sequence[Episode]) -> Replies | None:
    """Return the summary of these rollouts' replies; None if there is nothing to remark."""
    replies = empty = limits = 0
    waits_s: list[float] = []
    elsewhere: Counter[str] = Counter()
    models: Counter[str] = Counter()
    # Rows of older versions lack some of these columns.
    for row in rows:
        replies += row.get("transitions") or 0
        empty += row.get("empty_replies") or 0
        limits += row.get("rate_limits") or 0
        waits_s.append(row.get("rate_limit_s") or 0.0)
        if field := row.get("text_elsewhere"):
            elsewhere[field] += 1
        models.update(_names(row.get("served_models")))
    failures = _survived(rows)
    # A run should have one model, so report only several.
    if not (empty or limits or failures or len(models) > 1):
        return None
    return {
        "replies": replies,
        "empty": empty,
        "text_elsewhere": dict(elsewhere),
        "rate_limits": limits,
        "rate_limit_s": round(sum(waits_s), 3),
        "served_models": dict(models) if len(models) > 1 else {},
        "failures": failures,
    }


def _survived(rows: Sequence[Episode]) -> dict[str, int]:
    """Return calls without an answer by code, most first, in rollouts that ended well all the same.

    Other rollouts report theirs as their outcome.
    """
    total: Counter[str] = Counter()
    for row in rows:
        if row["outcome"] == "ok":
            total.update(json.loads(row.get("failure_codes") or "{}"))
    return dict(total.most_common())


def _names(served: str | None) -> list[str]:
    return served.split(", ") if served else []


def remarks_on(result: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the remarks on a run's replies for summaries and reports, one line each.

    Args:
        result: The `result` of a run's record.
    """
    replies: Replies | None = (result or {}).get("replies")
    if replies is None:
        return
    yield from _on_empty(replies)
    yield from _on_failures(replies)
    if replies["rate_limits"]:
        yield (
            f"a server limited its rate {replies['rate_limits']} times, "
            f"and calls waited {replies['rate_limit_s']:g} s for "
            "it; fewer rollouts at once (rollout.runners, rollout.concurrency) wait less"
        )
    if replies["served_models"]:
        yield (
            f"answers name several models, by rollouts: {_counted(replies['served_models'])}. "
            "The policy may have changed during the run"
        )


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in counts.items())


def _on_failures(replies: Replies) -> Iterator[str]:
    # Records of older versions have no failures here.
    failures = replies.get("failures")
    if not failures:
        return
    failed = sum(failures.values())
    remark = (
        f"{failed} of {replies['replies'] + failed} calls had no answer, and the agent continued "
        f"without them: {_counted(failures)}"
    )
    if "prompt_too_long" in failures:
        remark += ". Shorten its prompts, or raise sampling.max_prompt_tokens"
    yield remark


def _on_empty(replies: Replies) -> Iterator[str]:
    elsewhere = " and ".join(f"`{field}`" for field in replies["text_elsewhere"])
    whole = replies["empty"] == replies["replies"]
    # A model may answer nothing now and then, which is its own and needs no remark.
    if not replies["empty"] or not (whole or elsewhere):
        return
    count = "all" if whole else f"{replies['empty']} of"
    remark = f"{count} {replies['replies']} replies were empty"
    if elsewhere:
        remark += (
            f"; their text was in {elsewhere}. "
            "Start the server without a parser of reasoning, turn the model's "
            "reasoning off, or give it more tokens (sampling.max_response_tokens)"
        )
    yield remark
