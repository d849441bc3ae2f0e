"""Share of draws to which two arms give the same answer: how "identical" appears in the episodes.

Until the first update, agents that send the same prompts with the same seeds to the same weights
must give exactly the same answers. They continue to do so as long as the updates are the same,
which the gradient norm shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from harness.records import AGENT_OUTCOMES

if TYPE_CHECKING:
    import polars as pl

    from harness.compare.keys import Agreement, AgreementStep
    from harness.runs.reading import Run

DRAW = ["phase", "step", "task_id", "session"]
"""Columns that identify a rollout of a run."""
SameAnswers = dict[tuple[str, int], tuple[int, int]]
"""Common draws and those with the same answer, by phase and step."""


@dataclass
class _Pool:
    """Common draws of several seeds and steps, and those with the same answer."""

    draws: int = 0
    same: int = 0

    def add(self, draws: int, same: int) -> None:
        """Add the counts of one seed and step."""
        self.draws += draws
        self.same += same

    def share(self) -> float | None:
        """Return the share with the same answer; None without any draw."""
        return self.same / self.draws if self.draws else None


def agree(arms: Mapping[str, Sequence[Run]], baseline: str) -> dict[str, Agreement]:
    """Return shares of answers equal to the baseline's, by arm, pooled over common seeds."""
    for runs in arms.values():
        for run in runs:
            if not {*DRAW, "answer"} <= set(run.episodes.columns):
                return {}
    by_seed: dict[int, Run] = {}
    answers: dict[int, pl.DataFrame] = {}
    for run in arms[baseline]:
        by_seed[run.pairing] = run
        answers[run.pairing] = _answers(run)
    agreements: dict[str, Agreement] = {}
    for name, runs in arms.items():
        # Other seeds have other sampling seeds, so equal answers would be equal by chance.
        paired = [run for run in runs if run.pairing in by_seed]
        if name == baseline or not paired:
            continue
        counts: list[SameAnswers] = []
        steps: list[AgreementStep] = []
        complete = True
        for run in paired:
            base = by_seed[run.pairing]
            count = _same(_answers(run), answers[run.pairing])
            counts.append(count)
            steps += _training_steps(run, base, count)
            complete = complete and _covers_all(count, run, base)
        agreements[name] = _agreement(runs, counts, steps, complete)
    return agreements


def _agreement(
    runs: Sequence[Run],
    counts: Sequence[SameAnswers],
    steps: list[AgreementStep],
    complete: bool,
) -> Agreement:
    """Return an arm's agreement with the baseline, from the counts of every common seed.

    Args:
        complete: Whether every rollout and every gradient was compared.
    """
    # Numbers of draws are summed before they are divided: each draw counts once, whatever the
    # seed that it belongs to.
    total, start, first, training, end = _Pool(), _Pool(), _Pool(), _Pool(), _Pool()
    for count in counts:
        # Seeds may end at different steps, so each has its own last validation.
        last_step = 0
        for phase, step in count:
            if phase == "val":
                last_step = max(last_step, step)
        for (phase, step), (draws, same) in count.items():
            total.add(draws, same)
            if phase == "train":
                training.add(draws, same)
            if (phase, step) == ("train", 1):
                first.add(draws, same)
            if (phase, step) == ("val", 0):
                start.add(draws, same)
            if phase == "val" and step == last_step != 0:
                end.add(draws, same)
    compared_seeds: set[int] = set()
    gradients: list[float] = []
    parted: list[int] = []
    for entry in steps:
        compared_seeds.add(entry["seed"])
        if entry["gradient"] is not None:
            gradients.append(entry["gradient"])
        # Equal answers do not suffice: gradients that differ show in a later step's answers.
        if entry["same"] != 1 or entry["gradient"]:
            parted.append(entry["step"])
    # A seed that the baseline lacks was compared with nothing, so it may differ.
    every_seed = compared_seeds == {run.seed for run in runs}
    return {
        "draws": total.draws,
        "start": start.share(),
        "first": first.share(),
        "training": training.share(),
        "end": end.share(),
        "parted": min(parted, default=None),
        "gradient": max(gradients, default=None),
        "identical": every_seed and complete and not parted and total.same == total.draws,
        "steps": steps,
    }


def _covers_all(count: SameAnswers, run: Run, base: Run) -> bool:
    """Return whether the counts of two runs cover every rollout and gradient of both.

    A rollout without a known answer, or one that only one run has, could differ.
    """
    gradients = run.gradients.keys()
    trained = {step for phase, step in count if phase == "train"}
    # A trainer may log none at all.
    if gradients != base.gradients.keys() or (gradients and not trained <= gradients):
        return False
    compared = {key: draws for key, (draws, _) in count.items()}
    for one in (run, base):
        if _draws(one) != compared:
            return False
        for step in one.steps["step"]:
            if step > 0 and ("train", step) not in compared:
                return False
    return True


def _draws(run: Run) -> dict[tuple[str, int], int]:
    """Return the number of rollouts by phase and step, whatever their outcome."""
    rows = run.episodes.lazy().unique(DRAW).group_by("phase", "step").len().collect()
    counted: dict[tuple[str, int], int] = {}
    for phase, step, draws in rows.rows():
        counted[phase, step] = draws
    return counted


def _training_steps(run: Run, base: Run, count: SameAnswers) -> list[AgreementStep]:
    """Return the agreement of two runs of one seed in every step of training."""
    steps: list[AgreementStep] = []
    for (phase, step), (draws, same) in sorted(count.items()):
        if phase == "train":
            steps.append(
                {
                    "seed": run.seed,
                    "step": step,
                    "draws": draws,
                    "same": same / draws,
                    "gradient": _apart(run.gradients, base.gradients, step),
                }
            )
    return steps


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


def _same(mine: pl.DataFrame, theirs: pl.DataFrame) -> SameAnswers:
    """Count common draws, and those with the same answer, by phase and step."""
    import polars as pl

    both = mine.lazy().join(theirs.lazy(), on=DRAW).group_by("phase", "step")
    equal = (pl.col("answer") == pl.col("answer_right")).sum().alias("same")
    counts: SameAnswers = {}
    for phase, step, draws, same in both.agg(pl.len(), equal).collect().rows():
        counts[phase, step] = draws, same
    return counts


def _apart(mine: dict[int, float], theirs: dict[int, float], step: int) -> float | None:
    """Return the difference of a step's two gradient norms as a share of the larger one."""
    if step not in mine or step not in theirs:
        return None
    one, other = mine[step], theirs[step]
    # Relative to the larger norm, since norms shrink while a policy learns.
    return abs(one - other) / max(abs(one), abs(other)) if one != other else 0.0
