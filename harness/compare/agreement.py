"""How often two arms give the very same answer to the same draw: what "identical" looks like in the episodes.

Until the first update, agents that send the same prompts with the same seeds to the same weights must answer alike, to
the letter. They go on doing so for as long as the updates are the same, which the norm of the gradient tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from harness.records import AGENT_OUTCOMES

if TYPE_CHECKING:
    import pandas as pd

    from harness.compare.model import Agreement, AgreementStep
    from harness.compare.runs import Run

_DRAW = ["phase", "step", "task_id", "session"]


def agree(arms: Mapping[str, Sequence[Run]], baseline: str) -> dict[str, Agreement]:
    """Shares of equal answers with the baseline's run of the same seed, by arm, pooled over the seeds in common."""
    if any(column not in run.episodes for runs in arms.values() for run in runs for column in (*_DRAW, "answer")):
        return {}
    by_seed = {run.seed: run for run in arms[baseline]}
    answers = {seed: _answers(run) for seed, run in by_seed.items()}
    found: dict[str, Agreement] = {}
    for name, runs in arms.items():
        paired = [run for run in runs if run.seed in by_seed]
        if name == baseline or not paired:
            continue
        joined = [_answers(run).join(answers[run.seed], how="inner", lsuffix="_base") for run in paired]
        same = [(table["answer"] == table["answer_base"]).rename("same").reset_index() for table in joined]
        last = [table[table["phase"] == "val"]["step"].max() for table in same]
        steps = [
            entry
            for run, table in zip(paired, same, strict=True)
            for entry in _by_step(table[table["phase"] == "train"], run, by_seed[run.seed])
        ]
        parted = [entry["step"] for entry in steps if entry["same"] != 1 or entry["gradient"]]
        found[name] = {
            "draws": sum(map(len, same)),
            "start": _mean(t[(t["phase"] == "val") & (t["step"] == 0)]["same"] for t in same),
            "first": _mean(t[(t["phase"] == "train") & (t["step"] == 1)]["same"] for t in same),
            "training": _mean(t[t["phase"] == "train"]["same"] for t in same),
            "end": _mean(
                table[(table["phase"] == "val") & (table["step"] == step)]["same"]
                for table, step in zip(same, last, strict=True)
                if step > 0
            ),
            "parted": min(parted, default=None),
            "gradient": max((entry["gradient"] for entry in steps if entry["gradient"] is not None), default=None),
            "identical": {entry["seed"] for entry in steps} == {run.seed for run in runs}
            and not parted
            and all(bool(table["same"].all()) for table in same),
            "steps": steps,
        }
    return found


def answer_hashes(episodes: pd.DataFrame) -> pd.Series:
    """Eight hex digits of every rollout's final answer: all that asking for equality needs."""
    if "answer_hash" in episodes:  # a published copy, which keeps few texts
        return episodes["answer_hash"]
    return episodes["answer"].map(_hash)


def _hash(answer: Any) -> str | None:
    return sha256(answer.encode("utf-8", "surrogatepass")).hexdigest()[:8] if isinstance(answer, str) else None


def _answers(run: Run) -> pd.DataFrame:
    """Answers by draw; a failure that the agent caused stands for itself, one of the infrastructure for nothing."""
    rows = run.episodes.assign(answer=answer_hashes(run.episodes).fillna("none"))
    rows = rows[rows["outcome"].isin({"ok", *AGENT_OUTCOMES})].drop_duplicates(_DRAW).set_index(_DRAW)
    return rows["answer"].where(rows["outcome"] == "ok", rows["outcome"]).to_frame()


def _by_step(same: pd.DataFrame, run: Run, base: Run) -> list[AgreementStep]:
    groups = same.groupby("step")["same"].agg(["size", "mean"])
    mine, theirs = run.gradients, base.gradients
    return [
        {
            "seed": run.seed,
            "step": int(step),
            "draws": int(draws),
            "same": float(share),
            "gradient": _apart(mine, theirs, int(step)),
        }
        for step, draws, share in groups.itertuples()
    ]


def _apart(mine: dict[int, float], theirs: dict[int, float], step: int) -> float | None:
    """The difference of a step's two gradient norms as a share of the larger."""
    if step not in mine or step not in theirs:
        return None
    one, other = mine[step], theirs[step]
    return abs(one - other) / max(abs(one), abs(other)) if one != other else 0.0


def _mean(parts: Iterable[pd.Series]) -> float | None:
    parts = list(parts)
    total = sum(map(len, parts))
    return float(sum(part.sum() for part in parts)) / total if total else None
