"""Share of draws to which two arms give the same answer: how "identical" appears in the episodes.

Until the first update, agents that send the same prompts with the same seeds to the same weights
must give exactly the same answers. They continue to do so as long as the updates are the same,
which the gradient norm shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from harness.records import AGENT_OUTCOMES

if TYPE_CHECKING:
    import polars as pl

    from harness.compare.keys import Agreement, AgreementStep
    from harness.compare.runs import Run

DRAW = ["phase", "step", "task_id", "session"]
"""Columns that identify a rollout of a run."""


def agree(arms: Mapping[str, Sequence[Run]], baseline: str) -> dict[str, Agreement]:
    """Return shares of answers equal to the baseline's, by arm, pooled over common seeds."""
    if any(
        column not in run.episodes.columns
        for runs in arms.values()
        for run in runs
        for column in (*DRAW, "answer")
    ):
        return {}
    by_seed = {run.pairing: run for run in arms[baseline]}
    answers = {seed: _answers(run) for seed, run in by_seed.items()}
    found: dict[str, Agreement] = {}
    for name, runs in arms.items():
        paired = [run for run in runs if run.pairing in by_seed]
        if name == baseline or not paired:
            continue
        counts = [_same(_answers(run), answers[run.pairing]) for run in paired]
        steps: list[AgreementStep] = [
            {
                "seed": run.seed,
                "step": step,
                "draws": draws,
                "same": same / draws,
                "gradient": _apart(run.gradients, by_seed[run.pairing].gradients, step),
            }
            for run, count in zip(paired, counts, strict=True)
            for (phase, step), (draws, same) in sorted(count.items())
            if phase == "train"
        ]
        last = [
            max((step for phase, step in count if phase == "val"), default=0) for count in counts
        ]
        everything = [found for count in counts for found in count.items()]
        parted = [entry["step"] for entry in steps if entry["same"] != 1 or entry["gradient"]]
        found[name] = {
            "draws": sum(draws for _, (draws, _) in everything),
            "start": _share(one for draw, one in everything if draw == ("val", 0)),
            "first": _share(one for draw, one in everything if draw == ("train", 1)),
            "training": _share(one for (phase, _), one in everything if phase == "train"),
            "end": _share(
                count["val", step] for count, step in zip(counts, last, strict=True) if step
            ),
            "parted": min(parted, default=None),
            "gradient": max(
                (entry["gradient"] for entry in steps if entry["gradient"] is not None),
                default=None,
            ),
            "identical": {entry["seed"] for entry in steps} == {run.seed for run in runs}
            and not parted
            and all(draws == same for _, (draws, same) in everything),
            "steps": steps,
        }
    return found


def answer_hashes(episodes: pl.DataFrame) -> pl.Series:
    """Return eight hex digits per final answer, enough to test equality."""
    import polars as pl

    if "answer_hash" in episodes.columns:  # a published copy, which keeps few texts
        return episodes["answer_hash"]
    return pl.Series("answer", map(_hash, episodes["answer"]), dtype=pl.String)


def _hash(answer: str | None) -> str | None:
    return None if answer is None else sha256(answer.encode()).hexdigest()[:8]


def _answers(run: Run) -> pl.DataFrame:
    """Return answers by draw.

    A failure of the agent equals itself; an infrastructure failure equals nothing.
    """
    import polars as pl

    known = pl.col("outcome").is_in(["ok", *AGENT_OUTCOMES])
    given = (
        pl.when(pl.col("outcome") == "ok")
        .then(answer_hashes(run.episodes).fill_null("none"))
        .otherwise("outcome")
    )
    rows = run.episodes.lazy().select(*DRAW, "outcome", answer=given).filter(known)
    return rows.unique(DRAW, keep="first").collect()


def _same(mine: pl.DataFrame, theirs: pl.DataFrame) -> dict[tuple[str, int], tuple[int, int]]:
    """Count common draws, and those with the same answer, by phase and step."""
    import polars as pl

    both = mine.lazy().join(theirs.lazy(), on=DRAW).group_by("phase", "step")
    counts = both.agg(
        pl.len(), (pl.col("answer") == pl.col("answer_right")).sum().alias("same")
    ).collect()
    return {(phase, step): (draws, same) for phase, step, draws, same in counts.rows()}


def _apart(mine: dict[int, float], theirs: dict[int, float], step: int) -> float | None:
    """Return the difference of a step's two gradient norms as a share of the larger one."""
    if step not in mine or step not in theirs:
        return None
    one, other = mine[step], theirs[step]
    return abs(one - other) / max(abs(one), abs(other)) if one != other else 0.0


def _share(counts: Iterable[tuple[int, int]]) -> float | None:
    counts = list(counts)
    draws = sum(draws for draws, _ in counts)
    return sum(same for _, same in counts) / draws if draws else None
