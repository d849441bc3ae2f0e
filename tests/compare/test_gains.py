"""The gain of a training, split into format and skill."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

import polars as pl
import pytest

from harness.compare.answers import failing_answers, has_no_result, unknown_answers
from harness.compare.comparison import compare
from harness.compare.gains import split
from harness.compare.keys import Comparison
from harness.compare.layout import tables
from harness.compare.selection import select
from harness.runs.folder import RunFolder
from harness.runs.reading import STARTS_APART

Write = Callable[..., RunFolder]
TASKS = 20


def answer(folder: RunFolder, fails: tuple[int, int], right: tuple[int, int]) -> RunFolder:
    """Set how many of 20 answers fail and are right, before training and in the last validation."""
    file = folder.path / "episodes.parquet"
    rows = pl.read_parquet(file)
    last = rows["step"].max()
    number = pl.int_range(pl.len()).over("phase", "step")
    for step, failing, correct in zip((0, last), fails, right, strict=True):
        chosen = (pl.col("phase") == "val") & (pl.col("step") == step)
        # The first answers are right and the last ones fail; those in between run and are wrong.
        is_right, is_failing = number < correct, number >= TASKS - failing
        reason = pl.when(is_failing).then(pl.lit("the prediction fails: no such column"))
        rows = rows.with_columns(
            reward=pl.when(chosen).then(is_right.cast(float)).otherwise("reward"),
            reward_reason=pl.when(chosen)
            .then(reason.otherwise(pl.lit("other rows")))
            .otherwise("reward_reason"),
        )
    rows.write_parquet(file)
    return folder


def compared(*runs: RunFolder) -> Comparison:
    return compare(select([run.path for run in runs]))


def test_format_and_skill_add_up_to_the_gain(write_run: Write) -> None:
    runs = []
    for seed in range(3):
        run = write_run(seed=seed, val_limit=TASKS)
        runs.append(answer(run, fails=(10, 4), right=(5, 12)))
    (gain,) = compared(*runs)["gains"].values()
    assert gain["fails_initial"]["mean"] == pytest.approx(0.5)
    assert gain["fails_final"]["mean"] == pytest.approx(0.2)
    # 5 of 10 answers that run, then 12 of 16.
    assert (gain["right_initial"], gain["right_final"]) == pytest.approx((0.5, 0.75))
    assert gain["gain"]["mean"] == pytest.approx(7 / 20)
    assert gain["by_format"]["mean"] == pytest.approx((0.8 - 0.5) * (0.5 + 0.75) / 2)
    assert gain["by_skill"]["mean"] == pytest.approx((0.75 - 0.5) * (0.5 + 0.8) / 2)


@pytest.mark.parametrize(
    "reason",
    [
        "the prediction fails: no such column",
        "there is no query",
        "the prediction has more than 20,000 characters",
        "the prediction passed the deadline of 5 s",
    ],
)
def test_an_answer_without_a_result_fails(reason: str) -> None:
    rows = episodes(["ok", "ok", "ok"], [reason, "same result", None], "execution_accuracy/2")
    assert has_no_result(rows).to_list() == [True, False, False]


def episodes(outcomes: list[str], reasons: list[str | None], reward: str) -> pl.DataFrame:
    columns = {"outcome": outcomes, "reward_reason": reasons, "reward": [0.0] * len(outcomes)}
    return pl.DataFrame(columns).with_columns(reward_version=pl.lit(reward))


def test_older_reasons_of_the_reward_executes_tell_too() -> None:
    reasons: list[str | None] = ["nothing executed; the answer fails: no table", "the answer runs"]
    rows = episodes(["ok", "ok"], reasons, "executes/1")
    assert has_no_result(rows).to_list() == [True, False] and failing_answers(rows) == 1


def test_the_reward_itself_tells_whether_an_answer_fails() -> None:
    reasons: list[str | None] = ["the prediction fails: by chance", "another language", "", "late"]
    rows = episodes(["ok", "ok", "ok", "timeout"], reasons, "mine/1")
    flagged = rows.with_columns(executed=pl.Series([True, False, None, None]))
    assert has_no_result(flagged).to_list() == [False, True, None, True]
    assert failing_answers(flagged) == 1 and unknown_answers(flagged) == 1
    assert has_no_result(rows).to_list() == [None, None, None, True]
    assert failing_answers(rows) == unknown_answers(rows) == 0


def executed(folder: RunFolder, known: bool) -> RunFolder:
    """Set the reward to one of another package, which tells whether answers fail, or does not."""
    file = folder.path / "episodes.parquet"
    rows = pl.read_parquet(file)
    fails = pl.col("reward_reason").str.starts_with("the prediction fails")
    rows.with_columns(
        executed=pl.lit(None, pl.Boolean) if not known else ~fails,
        reward_version=pl.lit("mine/1"),
        reward_reason=pl.lit("another language"),
    ).write_parquet(file)
    return folder


def test_a_reward_of_another_package_can_tell_which_answers_fail(write_run: Write) -> None:
    run = executed(answer(write_run(val_limit=TASKS), fails=(10, 4), right=(5, 12)), known=True)
    comparison = compared(run)
    (gain,) = comparison["gains"].values()
    assert gain["fails_initial"]["mean"] == pytest.approx(0.5)
    (arm,) = comparison["arms"]
    assert arm["failures"] == {"answer_fails": 14} and arm["unknown_answers"] == 0


def test_answers_that_a_reward_does_not_tell_of_are_not_counted_as_running(
    write_run: Write,
) -> None:
    run = executed(answer(write_run(val_limit=TASKS), fails=(10, 4), right=(5, 12)), known=False)
    comparison = compared(run)
    assert "gains" not in comparison
    (arm,) = comparison["arms"]
    assert "answer_fails" not in arm["failures"] and arm["unknown_answers"] > 2 * TASKS
    (table,) = (table for table in tables(comparison) if table.key == "behaviour")
    assert "where the reward does not report them" in table.note


def test_intervals_cover_parts_of_a_large_change() -> None:
    draws = random.Random(0)
    fails, right = (0.9, 0.1), (0.5, 0.7)
    true_format = (fails[0] - fails[1]) * sum(right) / 2
    true_skill = (right[1] - right[0]) * (1 - sum(fails) / 2)
    covered = {"by_format": 0, "by_skill": 0}
    for _ in range(200):
        rows = []
        for task in range(200):
            row: dict[str, Any] = {"seed": 0, "cluster": f"c{task % 20}", "task_id": f"t{task}"}
            for suffix, failing, correct in zip(("", "_final"), fails, right, strict=True):
                executes = draws.random() >= failing
                row[f"fails{suffix}"] = float(not executes)
                row[f"right{suffix}"] = float(executes and draws.random() < correct)
            rows.append(row)
        gain = split(pl.DataFrame(rows))
        for key, true in (("by_format", true_format), ("by_skill", true_skill)):
            part = cast(dict[str, Any], gain)[key]
            covered[key] += part["low"] <= true <= part["high"]
    # 95 % of 200 are 190; fewer than 180 would be a chance of 1 in 1,000.
    assert min(covered.values()) >= 180


def test_seeds_of_one_start_are_not_independent() -> None:
    rows = []
    for start in range(2):
        for seed in range(4):
            for task in range(TASKS):
                right = float(start == 0 and task < 10)
                row = {"seed": start * STARTS_APART + seed, "cluster": "c", "task_id": str(task)}
                rows.append(
                    row | {"right": 0.0, "fails": 1.0, "right_final": right, "fails_final": 0.5}
                )
    assert split(pl.DataFrame(rows))["gain"]["seeds"] == 2


def test_an_attempt_without_an_answer_has_no_result(write_run: Write) -> None:
    run = answer(write_run(val_limit=TASKS), fails=(0, 0), right=(10, 10))
    file = run.path / "episodes.parquet"
    rows = pl.read_parquet(file)
    last_wrong = (pl.col("step") == rows["step"].max()) & (pl.col("reward") == 0)
    last_wrong = last_wrong & (pl.col("phase") == "val")
    rows.with_columns(
        outcome=pl.when(last_wrong).then(pl.lit("timeout")).otherwise("outcome")
    ).write_parquet(file)
    (gain,) = compared(run)["gains"].values()
    assert (gain["fails_initial"]["mean"], gain["fails_final"]["mean"]) == (0, 0.5)
    assert (gain["right_initial"], gain["right_final"]) == (0.5, 1)


def test_where_all_answers_fail_first_the_gain_is_format(write_run: Write) -> None:
    run = answer(write_run(val_limit=TASKS), fails=(TASKS, 10), right=(0, 8))
    (gain,) = compared(run)["gains"].values()
    assert gain["right_initial"] is None and gain["right_final"] == pytest.approx(0.8)
    assert gain["by_format"]["mean"] == pytest.approx(gain["gain"]["mean"])
    assert gain["by_skill"]["mean"] == pytest.approx(0)


def test_every_arm_has_a_row_if_answers_of_any_fail(write_run: Write) -> None:
    one = answer(write_run(val_limit=TASKS), fails=(0, 0), right=(5, 10))
    other = write_run("langgraph_sql", val_limit=TASKS)
    other = answer(other, fails=(4, 2), right=(5, 10))
    (table,) = (table for table in tables(compared(one, other)) if table.key == "gains")
    assert [row[0] for row in table.rows] == ["reference_sql", "langgraph_sql"]
    assert len(table.heads) == len({*table.heads}) == len(table.rows[0])


def test_nothing_is_split_where_no_answer_fails_or_nothing_was_trained(write_run: Write) -> None:
    run = answer(write_run(val_limit=TASKS), fails=(0, 0), right=(5, 10))
    assert "gains" not in compared(run)
    assert "gains" not in compared(write_run(kind="eval", val_limit=TASKS))
