"""Scores of validation questions as tables, and how those of two arms are paired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from harness.compare.model import PairedBy
    from harness.compare.runs import Run


def scores(runs: Sequence[Run], step: int | None = None) -> pd.DataFrame:
    """Scored validation episodes of several runs: columns seed, cluster, task_id, difficulty, value."""
    import pandas as pd

    return pd.concat([run.scores(step) for run in runs], ignore_index=True)


def span_of(runs: Sequence[Run]) -> tuple[float, float]:
    """Between which values the rewards of all runs lie."""
    return min(run.span[0] for run in runs), max(run.span[1] for run in runs)


def worst_cases(runs: Sequence[Run]) -> tuple[float, float] | None:
    """Mean score of the last validation if every unscored rollout had the lowest reward, and if the highest.

    Returns:
        None where everything was scored.
    """
    import pandas as pd

    rewards = pd.concat([run.validation()["reward"] for run in runs])
    if not rewards.isna().any():
        return None
    least, most = span_of(runs)
    return float(rewards.fillna(least).mean()), float(rewards.fillna(most).mean())


def paired_differences(first: pd.DataFrame, second: pd.DataFrame) -> tuple[pd.DataFrame, PairedBy]:
    """First minus second, question by question, and how they were paired: `seed` or `task`.

    Arms without a common seed are averaged over their seeds first; the doubt of training is then lost.
    """
    common = set(first["seed"]) & set(second["seed"])
    keys = ["seed", "cluster", "task_id"]
    paired: PairedBy = "seed"
    if not common:
        keys, paired = ["cluster", "task_id"], "task"
        first, second = (table.groupby(keys, as_index=False)[["value"]].mean() for table in (first, second))
    both = first[[*keys, "value"]].merge(second[[*keys, "value"]], on=keys, suffixes=("_first", "_second"))
    both["value"] = both["value_first"] - both["value_second"]
    return (both if common else both.assign(seed=0)), paired


def areas(runs: Sequence[Run]) -> pd.DataFrame:
    """The area under every question's own curve over the validated steps, by the trapezoid, divided by their range.

    It is linear in the answers, so its mean over questions is the area under the curve of accuracy. Questions
    without a score at some step are left out for that seed.

    Returns:
        Columns seed, cluster, task_id, value (0 to 1); no rows where a run was validated less than twice.
    """
    import numpy as np
    import pandas as pd

    frames = []
    for run in runs:
        if len(run.validated_steps) < 2:
            return pd.DataFrame(columns=["seed", "cluster", "task_id", "value"])
        columns = ["step", "cluster", "task_id", "reward"]
        rows = pd.concat([run.validation(step)[columns] for step in run.validated_steps])
        table = rows.pivot_table(index=["cluster", "task_id"], columns="step", values="reward", aggfunc="mean").dropna()
        steps = table.columns.to_numpy(float)
        area = np.trapezoid(table.to_numpy(float), steps, axis=1) / (steps[-1] - steps[0])
        frames.append(table.reset_index()[["cluster", "task_id"]].assign(seed=run.seed, value=area))
    return pd.concat(frames, ignore_index=True)
