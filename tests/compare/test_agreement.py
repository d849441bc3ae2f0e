"""Shares of equal answers between arms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pandas as pd

from harness.compare.agreement import agree
from harness.compare.runs import Run


@dataclass
class Recorded:
    seed: int
    episodes: pd.DataFrame


def run(seed: int, answers: dict[tuple[str, int], list[str]], outcome: str = "ok") -> Run:
    rows: list[dict[str, Any]] = [
        {"phase": phase, "step": step, "task_id": f"t{i}", "session": 0, "outcome": outcome, "answer": answer}
        for (phase, step), given in answers.items()
        for i, answer in enumerate(given)
    ]
    return cast(Run, Recorded(seed, pd.DataFrame(rows)))


BASE = {("val", 0): ["a", "b"], ("train", 1): ["c", "d"], ("val", 2): ["e", "f", "g", "h"]}
OTHER = {("val", 0): ["a", "b"], ("train", 1): ["c", "x"], ("val", 2): ["e", "x", "x", "x"]}


def test_answers_are_paired_by_seed_step_task_and_session() -> None:
    found = agree({"base": [run(0, BASE), run(1, OTHER)], "other": [run(1, OTHER), run(0, OTHER)]}, "base")
    assert found == {"other": {"draws": 16, "start": 1.0, "first": 0.75, "end": 0.625}}


def test_what_cannot_be_paired_is_left_out() -> None:
    assert agree({"base": [run(0, BASE)], "other": [run(5, BASE)]}, "base") == {}
    lost = agree({"base": [run(0, BASE)], "other": [run(0, BASE, outcome="timeout")]}, "base")
    assert lost == {"other": {"draws": 0, "start": None, "first": None, "end": None}}
    bare = cast(Run, Recorded(0, pd.DataFrame({"step": [0]})))
    assert agree({"base": [bare], "other": [bare]}, "base") == {}
