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
    elsewhere: Counter[str] = Counter()
    models: Counter[str] = Counter()
    # Rows of older versions lack some of these columns.
    for row in rows:
        replies += row.get("transitions") or 0
        empty += row.get("empty_replies") or 0
        limits += row.get("rate_limits") or 0
        if field := row.get("text_elsewhere"):
            elsewhere[field] += 1
        models.update(_names(row.get("served_models")))
    failures = _survived(rows)
    # One model, however often it answered, is what every run should have.
    if not (empty or limits or failures or len(models) > 1):
        return None
    return {
        "replies": replies,
        "empty": empty,
        "text_elsewhere": dict(elsewhere),
        "rate_limits": limits,
        "rate_limit_s": round(sum(row.get("rate_limit_s") or 0.0 for row in rows), 3),
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
    found: Replies | None = (result or {}).get("replies")
    if found is None:
        return
    yield from _on_empty(found)
    yield from _on_failures(found)
    if found["rate_limits"]:
        yield (
            f"a server limited its rate {found['rate_limits']} times, "
            f"and calls waited {found['rate_limit_s']:g} s for "
            "it; fewer rollouts at once (rollout.runners, rollout.concurrency) wait less"
        )
    if found["served_models"]:
        named = ", ".join(f"{name} ({count})" for name, count in found["served_models"].items())
        yield (
            f"answers name several models, by rollouts: {named}. "
            "The policy may have changed during the run"
        )


def _on_failures(found: Replies) -> Iterator[str]:
    failures = found.get("failures")
    if not failures:
        return
    failed = sum(failures.values())
    by_code = ", ".join(f"{code} ({count})" for code, count in failures.items())
    remark = (
        f"{failed} of {found['replies'] + failed} calls had no answer, and the agent continued "
        f"without them: {by_code}"
    )
    if "prompt_too_long" in failures:
        remark += ". Shorten its prompts, or raise sampling.max_prompt_tokens"
    yield remark


def _on_empty(found: Replies) -> Iterator[str]:
    elsewhere = " and ".join(f"`{field}`" for field in found["text_elsewhere"])
    whole = found["empty"] == found["replies"]
    if not found["empty"] or not (whole or elsewhere):
        return
    count = "all" if whole else f"{found['empty']} of"
    remark = f"{count} {found['replies']} replies were empty"
    if elsewhere:
        remark += (
            f"; their text was in {elsewhere}. "
            "Start the server without a parser of reasoning, turn the model's "
            "reasoning off, or give it more tokens (sampling.max_response_tokens)"
        )
    yield remark
