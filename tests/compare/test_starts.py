"""Two sides of a verdict, seeds and clusters, and the starts that seeds share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from harness.compare.comparison import compare
from harness.compare.layout import tables
from harness.compare.one_way_intervals import disagreeing, sides_of
from harness.compare.selection import select
from harness.compare.sentences import sentences
from harness.errors import NotComparable
from harness.runs.folder import RunFolder

Write = Callable[..., RunFolder]
CLUSTERS, QUESTIONS = 6, 10


def differences(by_cluster: Sequence[float], by_seed: Sequence[float]) -> pl.DataFrame:
    """Differences of every seed, cluster and question: a share of questions that only the arm has right."""
    rows = [
        {"seed": seed, "cluster": f"db{cluster}", "task_id": f"{cluster}/{question}"}
        | {"value": float(question < QUESTIONS * share * shift)}
        for seed, shift in enumerate(by_seed)
        for cluster, share in enumerate(by_cluster)
        for question in range(QUESTIONS)
    ]
    return pl.DataFrame(rows)


def test_seeds_alone_decide_what_clusters_alone_do_not() -> None:
    one_database_gains = differences([0.9, 0, 0, 0, 0, 0], [1, 1, 0.7, 1, 1, 0.8])
    sides = sides_of(one_database_gains)
    assert sides is not None
    assert sides["seeds"]["p"] < 0.001 and sides["seeds"]["low"] > 0
    assert sides["clusters"]["p"] > 0.05 and sides["clusters"]["low"] < 0

    one_training_gains = differences([0.5, 0.5, 0.4, 0.5, 0.5, 0.4], [1, 0, 0, 0, 0, 0])
    sides = sides_of(one_training_gains)
    assert sides is not None
    assert sides["seeds"]["p"] > 0.05 and sides["clusters"]["p"] < 0.001


def test_one_seed_or_one_cluster_has_no_two_sides() -> None:
    assert sides_of(differences([0.5, 0.2], [1])) is None
    assert sides_of(differences([0.5], [1, 0.5])) is None


def gains_in_one_cluster(folder: RunFolder, baseline: RunFolder, cluster: str) -> None:
    """Give a run the baseline's verdicts of its last validation, and right ones throughout one cluster."""
    path = folder.path / "episodes.parquet"
    rows = pl.read_parquet(path)
    theirs = pl.read_parquet(baseline.path / "episodes.parquet").filter(phase="val")
    last = rows["step"].max()
    theirs = theirs.filter(step=last).select("task_id", copied="reward")
    joined = rows.join(theirs, on="task_id", how="left")
    is_last = (pl.col("phase") == "val") & (pl.col("step") == last)
    right = pl.when(pl.col("cluster") == cluster).then(1.0).otherwise("copied")
    reward = pl.when(is_last).then(right).otherwise("reward").alias("reward")
    joined.with_columns(reward).drop("copied").write_parquet(path)


@pytest.mark.slow
def test_where_the_sides_disagree_a_comparison_shows_both(write_run: Write, tmp_path: Path) -> None:
    for seed in range(5):
        accuracy = {"accuracy": (0.3, 0.3), "val_limit": 120}
        baseline = write_run("reference_sql", seed, **accuracy)
        arm = write_run("langgraph_sql", seed, **accuracy)
        clusters = pl.read_parquet(arm.path / "episodes.parquet").filter(phase="val")["cluster"]
        gains_in_one_cluster(arm, baseline, sorted(clusters.unique())[0])
    found = compare(select([tmp_path / "runs"]), "reference_sql", margin=0.05)
    (pair,) = found["pairs"]
    assert pair["verdict"] == "cannot tell"
    assert disagreeing(found["pairs"], found["alpha"]) == [pair]
    (table,) = (table for table in tables(found) if table.key == "sides")
    cells = dict(zip(table.heads, table.rows[0], strict=False))
    assert cells["arm against baseline"] == "langgraph_sql"
    assert cells["seeds alone"].startswith("[+") and cells["clusters alone"].startswith("[-")


def test_where_both_sides_agree_there_is_no_table_of_them(three_arms: Path) -> None:
    found = compare(select([three_arms]), "reference_sql")
    assert {"sides", "arm"} <= {*found["pairs"][0]}
    assert all(table.key != "sides" for table in tables(found))


def two_starts(write_run: Write, gains: Sequence[float]) -> None:
    """Write three seeds of two arms from each start; `langgraph_sql` gains as much from a start."""
    for start, gain in enumerate(gains):
        for seed in range(3):
            options: dict[str, Any] = {"model": f"policy-{start}", "val_limit": 120}
            write_run("reference_sql", seed, **options, accuracy=(0.3, 0.3))
            write_run("langgraph_sql", seed, **options, accuracy=(0.3, 0.3 + gain))


def test_policies_of_one_arm_are_refused_unless_they_are_allowed(
    write_run: Write, tmp_path: Path
) -> None:
    two_starts(write_run, [0.0, 0.0])
    with pytest.raises(NotComparable, match="model differs"):
        compare(select([tmp_path / "runs"]), "reference_sql")


@pytest.mark.slow
def test_starts_not_seeds_are_independent_where_there_are_several(
    write_run: Write, tmp_path: Path
) -> None:
    two_starts(write_run, [0.5, 0.1])
    found = compare(select([tmp_path / "runs"]), "reference_sql", ["model"], margin=0.05)
    (pair,) = found["pairs"]
    assert (pair["starts"], pair["difference"]["seeds"]) == (2, 2)
    assert [arm["seeds"] for arm in found["arms"]] == [[0, 1, 2, 0, 1, 2]] * 2
    assert pair["paired_by"] == "seed" and not found["remarks"][0].startswith("reference_sql seed")
    # From either start alone the arms differ clearly, but two starts that disagree say little of a third.
    first, second = found["starts"]
    assert [one["trainings"] for one in found["starts"]] == [6, 6]
    by_start = [one["differences"]["langgraph_sql"] for one in (first, second)]
    assert by_start[0]["mean"] > 0.35 > 0.25 > by_start[1]["mean"] and by_start[0]["low"] > 0
    assert pair["difference"]["by_seed"] == tuple(one["mean"] for one in by_start)
    assert pair["verdict"] == "cannot tell" and pair["difference"]["low"] < 0
    table = next(table for table in tables(found) if table.key == "starts")
    assert [row[0][:14] for row in table.rows] == ["pocket-sql (po"] * 2
    assert any(text.startswith("Trainings began with 2 starts") for text in sentences(found))
    accuracy = next(table for table in tables(found) if table.key == "accuracy")
    assert accuracy.rows[0][1] == "6 of 2 starts (0 to 2)"


def test_one_start_that_a_recipe_made_is_called_one_start(write_run: Write, tmp_path: Path) -> None:
    for seed in range(2):
        write_run("reference_sql", seed)
        write_run("langgraph_sql", seed)
    found = compare(select([tmp_path / "runs"]), "reference_sql")
    assert [one["policy"] for one in found["starts"]] == ["pocket-sql"]
    assert "starts" not in found["pairs"][0]
    (table,) = (table for table in tables(found) if table.key == "starts")
    assert table.rows[0][1:] == ["a recipe, bundled", "4"] and "One start" in table.note


def test_arms_that_begin_with_a_policy_each_are_paired_by_seed(
    write_run: Write, tmp_path: Path
) -> None:
    for seed in range(2):
        write_run("reference_sql", seed, model="one")
        write_run("langgraph_sql", seed, model="another")
    found = compare(select([tmp_path / "runs"]), "reference_sql", ["model"])
    assert found["pairs"][0]["difference"]["seeds"] == 2 and "starts" not in found
    assert found["pairs"][0]["paired_by"] == "seed"
