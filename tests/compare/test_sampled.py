"""Several samples of a task: estimators against all subsets, votes, and comparisons of sampled runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import polars as pl
import pytest

from harness.compare import keys
from harness.compare.comparison import compare
from harness.compare.formats import render
from harness.compare.layout import tables
from harness.compare.sampled import agreed, best_of, by_task, lines, measures, summary, worst_of
from harness.compare.selection import select
from harness.errors import ConfigError, NotComparable
from strictness import strict_adapter

Write = Callable[..., Any]
SAMPLED = ["eval.samples=4", "eval.temperature=1.0"]


@pytest.mark.parametrize("values", [[0, 0, 1, 1, 1], [0.2, 0.9, -1.0, 0.2, 0.5, 0.7], [1.0]])
def test_best_and_worst_are_means_over_all_subsets(values: list[float]) -> None:
    for k in range(1, len(values) + 1):
        subsets = list(combinations(values, k))
        assert best_of(values, k) == pytest.approx(sum(map(max, subsets)) / len(subsets))
        assert worst_of(values, k) == pytest.approx(sum(map(min, subsets)) / len(subsets))
    assert best_of(values, 99) == max(values) and worst_of(values, 99) == min(values)


def test_the_best_of_right_and_wrong_is_the_published_estimator() -> None:
    for right in range(11):
        for k in (1, 2, 5, 10):
            found = best_of([1.0] * right + [0.0] * (10 - right), k)
            assert found == pytest.approx(
                1 - comb(10 - right, k) / comb(10, k)
            )  # Chen et al. 2021, equation 1


def test_pass_at_k_of_few_samples_is_unbiased() -> None:
    draws = (np.random.default_rng(0).random((20_000, 5)) < 0.3).astype(float)
    assert np.mean([best_of(row, 3) for row in draws.tolist()]) == pytest.approx(
        1 - 0.7**3, abs=0.01
    )
    assert np.mean([worst_of(row, 3) for row in draws.tolist()]) == pytest.approx(0.3**3, abs=0.005)


def test_what_most_agree_on_counts_and_ties_go_to_the_earliest() -> None:
    assert agreed([("a", 0.0), ("b", 1.0), ("b", 1.0)]) == 1.0
    assert agreed([("a", 0.0), ("b", 1.0), ("b", 1.0), ("a", 0.0)]) == 0.0
    assert agreed([(None, 0.0), (None, 0.0), ("b", 0.7)]) == 0.7  # a failed one has no vote
    assert agreed([(None, 0.4), (None, 0.5)]) == 0.4


def test_measures_are_taken_at_powers_of_two_and_at_all() -> None:
    assert [name for name in measures(6) if name.startswith("best")] == [
        "best_1",
        "best_2",
        "best_4",
        "best_6",
    ]
    assert measures(2) == ["best_1", "best_2", "worst_2", "agreed"]


def rows(rewards: list[list[float | None]]) -> pl.DataFrame:
    return pl.DataFrame(
        [
            {
                "seed": 0,
                "cluster": f"c{task % 3}",
                "task_id": f"t{task}",
                "session": session,
                "reward": reward,
            }
            | {"meaning": None if reward is None else str(reward)}
            for task, samples in enumerate(rewards)
            for session, reward in reversed(list(enumerate(samples)))
        ]
    )


def test_unscored_samples_are_no_zeros_and_tasks_with_fewer_are_counted() -> None:
    table = rows([[1.0, None, None, None], [None] * 4, [0.0, 1.0, 1.0, 0.0]])
    found = {row["task_id"]: row for row in by_task(table, 4).rows(named=True)}
    assert list(found) == ["t0", "t2"] and found["t0"]["best_1"] == 1.0
    assert found["t0"]["best_4"] is None and found["t0"]["worst_2"] is None
    assert found["t2"]["best_2"] == pytest.approx(5 / 6) and found["t2"]["agreed"] == 0.0
    summed = summary(table, 4, (0.0, 1.0))
    assert (summed["tasks"], summed["short"]) == (2, 1)
    assert (
        summed["measures"]["best_4"]["mean"] == 1.0
        and summed["measures"]["best_4"]["interval_95"][0] < 0.5
    )
    assert summed["measures"]["worst_4"]["left_out"] == 1
    assert "1 task with fewer scored samples left out" in "\n".join(lines(summed, False))
    assert "1 of them with fewer scored ones" in lines(summed, False)[0] and "pass^4" in "".join(
        lines(summed, False)
    )
    assert "pass" not in "".join(lines(summed, True)) and "best of 4, oracle" in "".join(
        lines(summed, True)
    )
    assert summary(table.clear(), 4, (0.0, 1.0))["measures"] == {}


def test_one_scored_sample_of_eight_is_no_estimate_of_the_worst_of_eight() -> None:
    table = rows([[1.0] + [None] * 7, [1.0] * 4 + [0.0] * 4, [None] * 3 + [1.0] * 5])
    summed = summary(table, 8, (0.0, 1.0))
    assert (summed["measures"]["worst_8"]["mean"], summed["measures"]["worst_8"]["left_out"]) == (
        0.0,
        2,
    )
    assert summed["measures"]["worst_4"]["left_out"] == 1
    alone = summary(rows([[1.0] + [None] * 7]), 8, (0.0, 1.0))["measures"]
    assert "worst_8" not in alone and alone["best_1"]["mean"] == 1.0


def test_graded_rewards_of_a_range_stay_in_it() -> None:
    found = summary(rows([[4.0, 5.0], [5.0, 5.0], [5.0, 4.5]]), 2, (0.0, 5.0))["measures"]
    assert all(
        0 <= one["interval_95"][0] <= one["mean"] <= one["interval_95"][1] <= 5
        for one in found.values()
    )


def test_sampled_runs_are_compared_task_by_task(write_run: Write) -> None:
    one = write_run(kind="eval", overrides=SAMPLED, accuracy=(0, 0.8), unscored=2)
    other = write_run("langgraph_sql", kind="eval", overrides=SAMPLED, accuracy=(0, 0.2))
    found = compare(select([one.path, other.path]))
    strict_adapter(keys.Comparison, [keys.Comparison]).validate_python(found)
    several = found["sampled"]
    assert several["samples"] == 4 and several["short"] == {"reference_sql": 1, "langgraph_sql": 0}
    arms = several["arms"]
    best = arms["langgraph_sql"]["best_4"]
    assert (
        best["estimate"]["mean"] == pytest.approx(1 - 0.8**4, abs=0.15)
        and best["p_holm"] >= best["p"]
    )
    assert arms["reference_sql"]["best_4"]["estimate"]["mean"] > 0.95
    gap = arms["langgraph_sql"]["agreed"]["difference"]
    assert gap["tasks"] == 60 and gap["high"] < 0
    assert found["arms"][0]["per_seed"][0]["val_tasks"] == 60
    (table,) = (one for one in tables(found) if one.key == "sampled")
    assert len(table.rows) == 2 * 5 and "self-consistency" in table.rows[4]
    assert (
        "pass@4" in render(found, "md")
        and json.loads(render(found, "json"))["sampled"]["samples"] == 4
    )


def test_runs_that_were_sampled_otherwise_are_refused(write_run: Write) -> None:
    greedy, sampled = (
        write_run(kind="eval"),
        write_run("langgraph_sql", kind="eval", overrides=SAMPLED),
    )
    with pytest.raises(NotComparable) as refused:
        compare(select([greedy.path, sampled.path]))
    assert "samples differs: 1 in" in str(refused.value) and "sampling_val.temperature" in str(
        refused.value
    )
    allowed = compare(select([greedy.path, sampled.path]), allow=["samples", "sampling_val"])
    assert "sampled" not in allowed and len(allowed["arms"]) == 2
    assert "sampled" not in compare(select([greedy.path]))


def test_one_greedy_sample_is_what_evaluations_always_were(write_run: Write) -> None:
    plain, stated = (
        write_run(kind="eval", overrides=more)
        for more in ([], ["eval.samples=1", "eval.temperature=0"])
    )
    before, after = plain.read(), stated.read()
    assert before["config"] == after["config"] and "eval" not in before["config"]
    assert before["identity"] == after["identity"] and "samples" not in before["identity"]
    assert before["identity"]["sampling_val"]["temperature"] == 0


def test_many_greedy_samples_are_refused(write_run: Write) -> None:
    with pytest.raises(
        ConfigError, match="8 samples at temperature 0 are one answer drawn 8 times"
    ):
        write_run(kind="eval", overrides=["eval.samples=8"])
