"""Shares of equal answers between arms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import polars as pl
import pytest

from harness.compare.agreement import agree
from harness.compare.measures import dialogues
from harness.runs.reading import Run


@dataclass
class Recorded:
    seed: int
    episodes: pl.DataFrame
    steps: pl.DataFrame
    start: int = 0

    pairing = Run.pairing
    gradients = vars(Run)["gradients"]
    logged = Run.logged


def run(
    seed: int, answers: dict[tuple[str, int], list[str]], outcome: str = "ok", norm: float = 0.2
) -> Run:
    rows: list[dict[str, Any]] = [
        {
            "phase": phase,
            "step": step,
            "task_id": f"t{i}",
            "session": 0,
            "outcome": outcome,
            "answer": answer,
        }
        for (phase, step), given in answers.items()
        for i, answer in enumerate(given)
    ]
    steps = pl.DataFrame({"step": [0, 1, 2], "gradient_norm": [None, 0.1, norm]})
    return cast(Run, Recorded(seed, pl.DataFrame(rows), steps))


BASE = {
    ("val", 0): ["a", "b"],
    ("train", 1): ["c", "d"],
    ("train", 2): ["c", "d"],
    ("val", 2): ["e", "f", "g", "h"],
}
OTHER = BASE | {("train", 2): ["c", "x"], ("val", 2): ["e", "x", "x", "x"]}


def test_answers_are_paired_by_seed_step_task_and_session() -> None:
    found = agree(
        {"base": [run(0, BASE), run(1, OTHER)], "other": [run(1, OTHER), run(0, OTHER)]}, "base"
    )["other"]
    shares = {"start": 1.0, "first": 1.0, "training": 0.875, "end": 0.625}
    assert {key: found[key] for key in shares} == shares and found["draws"] == 20
    assert found["parted"] == 2 and found["gradient"] == 0.0 and not found["identical"]
    assert found["steps"][-1] == {"seed": 0, "step": 2, "draws": 2, "same": 0.5, "gradient": 0.0}


def test_trainings_are_identical_only_if_every_answer_and_every_gradient_is() -> None:
    same = agree({"base": [run(0, BASE)], "other": [run(0, BASE)]}, "base")["other"]
    assert same["identical"] and same["parted"] is None and same["training"] == 1.0
    parted = agree({"base": [run(0, BASE)], "other": [run(0, BASE, norm=0.25)]}, "base")["other"]
    assert not parted["identical"] and parted["parted"] == 2
    assert parted["gradient"] == pytest.approx(0.2) and parted["training"] == 1.0
    partial = agree({"base": [run(0, BASE)], "other": [run(0, BASE), run(1, BASE)]}, "base")[
        "other"
    ]
    assert not partial["identical"]  # no record has seed 1
    untrained = {("val", 0): ["a", "b"]}
    assert not agree({"base": [run(0, untrained)], "other": [run(0, untrained)]}, "base")["other"][
        "identical"
    ]


@pytest.mark.parametrize(
    "lacks",
    [
        {"episodes": pl.col("step") < 2},  # rollouts of a later step
        {"episodes": pl.col("task_id") != "t1"},  # one rollout of every step
        {"steps": pl.col("step") < 2},  # a gradient
        {"both steps": pl.col("step") < 2},  # the same gradient in both
    ],
)
def test_trainings_with_missing_rows_are_not_identical(lacks: dict[str, pl.Expr]) -> None:
    for place, kept in lacks.items():
        whole, part = run(0, BASE), run(0, BASE)
        both, _, name = place.rpartition(" ")
        setattr(part, name, getattr(part, name).filter(kept))
        if both:
            setattr(whole, name, getattr(whole, name).filter(kept))
        for one, other in ((whole, part), (part, whole)):
            found = agree({"base": [one], "other": [other]}, "base")["other"]
            assert not found["identical"]


def test_an_infrastructure_failure_could_have_been_another_answer() -> None:
    lost = run(0, BASE)
    outcome = pl.when(pl.col("task_id") == "t1").then(pl.lit("endpoint_error")).otherwise("outcome")
    lost.episodes = lost.episodes.with_columns(outcome=outcome)
    found = agree({"base": [run(0, BASE)], "other": [lost]}, "base")["other"]
    assert found["training"] == 1.0 and not found["identical"]


def test_what_cannot_be_paired_is_left_out() -> None:
    assert agree({"base": [run(0, BASE)], "other": [run(5, BASE)]}, "base") == {}
    lost = agree(
        {"base": [run(0, BASE)], "other": [run(0, BASE, outcome="endpoint_error")]}, "base"
    )["other"]
    assert (
        lost["draws"] == 0
        and lost["start"] is lost["training"] is lost["gradient"] is None
        and lost["steps"] == []
    )
    bare = cast(Run, Recorded(0, pl.DataFrame({"step": [0]}), pl.DataFrame()))
    assert agree({"base": [bare], "other": [bare]}, "base") == {}


def test_a_failure_of_the_agent_is_an_answer_of_its_own() -> None:
    failed = run(0, BASE, outcome="prompt_too_long")
    assert agree({"base": [run(0, BASE)], "other": [failed]}, "base")["other"]["training"] == 0.0
    assert agree({"base": [failed], "other": [failed]}, "base")["other"]["identical"]


def test_rows_of_dialogues_are_told_as_shares_of_calls_and_of_tokens() -> None:
    columns = ("calls", "merged_calls", "tokens", "saved_tokens")
    steps = pl.DataFrame(
        [(None,) * 4, (6.0, 2.0, 60.0, 20.0), (4.0, 3.0, 20.0, 20.0)], columns, orient="row"
    )
    assert dialogues(cast(Run, Recorded(0, pl.DataFrame(), steps))) == (0.5, 40 / 120)
    assert dialogues(cast(Run, Recorded(0, pl.DataFrame(), steps[:1]))) is None
    assert dialogues(cast(Run, Recorded(0, pl.DataFrame(), steps.drop("merged_calls")))) is None
