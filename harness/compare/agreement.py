"""How often two arms give the very same answer to the same draw: what "identical" looks like in the episodes.

Until the first update, agents that send the same prompts with the same seeds to the same weights must answer alike, to
the letter. Later the order in which calls meet in a batch changes the last bits of a sum, and trainings part slowly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from harness.compare.runs import Run

_DRAW = ["phase", "step", "task_id", "session"]


def agree(arms: Mapping[str, Sequence[Run]], baseline: str) -> dict[str, dict[str, float | int | None]]:
    """Shares of equal answers with the baseline's run of the same seed, by arm.

    Returns:
        `start` (validation before training), `first` (rollouts of the first step), `end` (last validation), each pooled
        over the seeds in common, None where there is nothing to pair, and `draws`, the number of pairs.
    """
    if any(column not in run.episodes for runs in arms.values() for run in runs for column in (*_DRAW, "answer")):
        return {}
    by_seed = {run.seed: _answers(run) for run in arms[baseline]}
    found: dict[str, dict[str, float | int | None]] = {}
    for name, runs in arms.items():
        pairs = [(by_seed[run.seed], _answers(run)) for run in runs if run.seed in by_seed]
        if name == baseline or not pairs:
            continue
        joined = [one.join(other, how="inner", lsuffix="_base") for one, other in pairs]
        same = [(table["answer"] == table["answer_base"]).rename("same").reset_index() for table in joined]
        last = [table[table["phase"] == "val"]["step"].max() for table in same]
        found[name] = {
            "draws": sum(map(len, same)),
            "start": _mean([t[(t["phase"] == "val") & (t["step"] == 0)]["same"] for t in same]),
            "first": _mean([t[(t["phase"] == "train") & (t["step"] == 1)]["same"] for t in same]),
            "end": _mean(
                [
                    table[(table["phase"] == "val") & (table["step"] == step)]["same"]
                    for table, step in zip(same, last, strict=True)
                    if step > 0
                ]
            ),
        }
    return found


def answer_hashes(episodes: pd.DataFrame) -> pd.Series:
    """Eight hex digits of every rollout's final query: all that asking for equality needs."""
    if "answer_hash" in episodes:  # a published copy, which keeps few texts
        return episodes["answer_hash"]
    return episodes["answer"].map(_hash)


def _hash(answer: Any) -> str | None:
    return sha256(answer.encode("utf-8", "surrogatepass")).hexdigest()[:8] if isinstance(answer, str) else None


def _answers(run: Run) -> pd.DataFrame:
    episodes = run.episodes.assign(answer=answer_hashes(run.episodes))
    return episodes[episodes["outcome"] == "ok"].drop_duplicates(_DRAW).set_index(_DRAW)[["answer"]]


def _mean(parts: Sequence[pd.Series]) -> float | None:
    total = sum(map(len, parts))
    return float(sum(part.sum() for part in parts)) / total if total else None
