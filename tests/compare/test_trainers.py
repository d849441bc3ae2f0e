"""Runs of different trainers: permission for the trainer covers options that only one of them has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.compare.amounts import updates_weights
from harness.compare.comparison import compare
from harness.compare.score_tables import views_table
from harness.compare.selection import select
from harness.compare.trainers import of_one_trainer
from harness.compare.views import VIEWS
from harness.errors import NotComparable

OTHER = ["train.trainer=demonstrations", "train.shots=1"]


def test_permission_for_the_trainer_is_permission_for_its_options(
    write_run: Callable[..., Any],
) -> None:
    base, other = write_run(), write_run(overrides=OTHER)
    with pytest.raises(NotComparable, match=r"train\.trainer differs"):
        compare(select([base.path, other.path]))
    found = compare(select([base.path, other.path]), allow=["train.trainer"])
    keys = {exempt["key"] for exempt in found["exceptions"]}
    assert {"train.trainer", "train.shots", "train.batching"} <= keys
    # An arm is named by its trainer, not by a dozen options that the other one lacks.
    assert {arm["name"] for arm in found["arms"]} == {
        "reference_sql trainer=verl",
        "reference_sql trainer=demonstrations",
    }


def test_options_that_both_have_need_permission_of_their_own(
    write_run: Callable[..., Any],
) -> None:
    base, other = write_run(), write_run(overrides=[*OTHER, "train.val_every=7"])
    with pytest.raises(NotComparable, match=r"^train\.val_every differs"):
        compare(select([base.path, other.path]), allow=["train.trainer"])


def test_a_learning_rate_is_no_difference_to_a_trainer_without_one(
    write_run: Callable[..., Any],
) -> None:
    base, other = write_run(), write_run(overrides=[*OTHER, "train.learning_rate=1e-3"])
    found = compare(select([base.path, other.path]), allow=["train.trainer"])
    assert len(found["arms"]) == 2


def test_a_trainer_without_updates_of_weights_says_so_in_its_identity(
    write_run: Callable[..., Any],
) -> None:
    runs = [select([write_run(overrides=overrides).path]).runs[0] for overrides in ([], OTHER)]
    assert [updates_weights(run) for run in runs] == [True, False]
    assert runs[1].record["identity"]["train"]["updates_weights"] is False
    # As records of an earlier version have it.
    for run in runs:
        run.record["identity"]["train"].pop("updates_weights", None)
    assert [updates_weights(run) for run in runs] == [True, False]


def test_an_arm_without_updates_of_weights_has_no_budget_of_training(
    write_run: Callable[..., Any],
) -> None:
    found = compare(
        select([write_run().path, write_run(overrides=OTHER).path]), allow=["train.trainer"]
    )
    assert [view["key"] for view in found["views"]] == list(VIEWS)
    table = views_table(found)
    trained, shown = (dict(zip(table.heads, row, strict=True)) for row in table.rows)
    assert "-" not in trained.values()
    assert shown["arm"] == "reference_sql trainer=demonstrations"
    assert shown["as configured %"] == trained["as configured %"]  # both climb to the same
    assert shown["optimizer steps"] == shown["trained tokens"] == "-"
    assert [cell for head, cell in shown.items() if head.startswith("at ")] == ["-", "-"]


def test_a_key_that_runs_of_one_trainer_lack_is_of_no_trainer() -> None:
    verl, old = {"train.trainer": "verl", "train.packed": True}, {"train.trainer": "verl"}
    other = {"train.trainer": "other"}
    assert of_one_trainer("train.packed", [verl, other])
    assert not of_one_trainer("train.packed", [verl, old, other])
    assert not of_one_trainer("train.packed", [verl, {**verl, "train.packed": False}, other])
    assert not of_one_trainer("train.trainer", [verl, other])
    assert not of_one_trainer("seed", [{"seed": 1, **verl}, other])
