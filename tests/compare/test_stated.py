"""A margin, baseline or checkpoint that was not stated before the results is named as such."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.compare.brief import answer
from harness.compare.comparison import compare
from harness.compare.formats import render
from harness.compare.selection import select
from harness.compare.sentences import sentences
from harness.errors import UserError
from harness.runs.folder import RunFolder
from harness_power_analysis.planning import planned

Write = Callable[..., RunFolder]
BEFORE, AFTER = "2000-01-01T00:00:00Z", "2999-01-01T00:00:00Z"


@pytest.fixture
def study(write_run: Write, tmp_path: Path) -> Callable[..., Path]:
    """Writes `study.json` of two alike arms with eight seeds, which states what is given."""
    folder = tmp_path / "runs"
    jobs = []
    for agent in ("reference_sql", "langgraph_sql"):
        for seed in range(8):
            run = write_run(agent, seed, val_limit=20, keep_transitions=False)
            jobs.append(
                {"key": f"{agent}-{seed}", "arm": agent, "seed": seed, "run": run.path.name}
            )

    def written(launches: list[Mapping[str, Any]], **stated: Any) -> Path:
        starts = [{"runs_at_once": 1, "slots": [], **launch} for launch in launches]
        state = {"name": "small", "jobs": jobs, "launches": starts, **stated}
        (folder / "study.json").write_text(json.dumps(state))
        return folder

    return written


def launch(started: str, margin: float | None, baseline: str, checkpoint: int) -> dict[str, Any]:
    return {
        "started": started,
        "margin": margin,
        "baseline": baseline,
        "checkpoint": checkpoint,
    }


def late_of(comparison: Any) -> list[tuple[str, str, dict[str, Any]]]:
    found = []
    for exempt in comparison["exceptions"]:
        found.append((exempt["key"], exempt["why"], exempt["values"]))
    return found


def test_another_margin_than_the_study_s_is_named_with_both(study: Callable[..., Path]) -> None:
    folder = study([], margin=0.05, baseline="reference_sql")
    own = compare(select([folder]))
    assert late_of(own) == [] and "margin_source" not in own
    assert "±5 points, the margin stated beforehand" in " ".join(sentences(own))
    assert late_of(compare(select([folder]), margin=0.05)) == []

    other = compare(select([folder]), margin=0.2)
    assert late_of(other) == [("margin", "given", {"study": 0.05, "comparison": 0.2})]
    for form in ("md", "html", "json"):
        text = render(other, form)  # type: ignore[arg-type]
        assert "stated beforehand (p" not in text
        assert "0.05 in the study" in text and "0.2 in this comparison" in text
    assert "±20 points, the margin given to this comparison" in render(other, "md")
    other["pairs"][0] |= {"verdict": "equivalent", "identical": False}
    assert "within ±20.0 points, a margin not stated beforehand" in answer(other)


def test_a_margin_of_a_study_without_one_is_not_stated_beforehand(
    study: Callable[..., Path],
) -> None:
    found = compare(select([study([], baseline="reference_sql")]), margin=0.2)
    assert late_of(found) == [("margin", "given", {"study": None, "comparison": 0.2})]
    text = "The margin is not the one that the study states: none in the study, 0.2 in this"
    assert text in " ".join(sentences(found))


def test_runs_without_a_study_state_no_margin_beforehand(three_arms: Path) -> None:
    found = compare(select([three_arms]), "reference_sql", margin=0.2)
    assert late_of(found) == []
    text = " ".join(sentences(found))
    assert "the margin given to this comparison" in text and "beforehand" not in text


def test_what_a_study_changed_after_runs_had_finished_is_named(
    study: Callable[..., Path],
) -> None:
    first = launch(BEFORE, 0.05, "reference_sql", 2)
    second = launch(AFTER, 0.2, "langgraph_sql", 4)
    older = {"started": BEFORE}
    folder = study([older, first, second], margin=0.2, baseline="langgraph_sql", checkpoint=4)
    found = compare(select([folder]))
    assert late_of(found) == [
        ("margin", "changed", {"first": 0.05, "now": 0.2}),
        ("baseline", "changed", {"first": "reference_sql", "now": "langgraph_sql"}),
        ("checkpoint", "changed", {"first": 2, "now": 4}),
    ]
    text = render(found, "md")
    assert f"margin was changed after runs had finished: 0.05 at first, 0.2 since {AFTER}." in text
    assert "±20 points, the margin that the study states now" in text
    assert "## Not identical, or not stated beforehand" in text


def test_a_change_before_any_result_or_a_change_back_is_none(study: Callable[..., Path]) -> None:
    first = launch(BEFORE, 0.05, "reference_sql", 2)
    second = launch("2000-01-02T00:00:00Z", 0.2, "reference_sql", 2)
    stated: dict[str, Any] = {"baseline": "reference_sql", "checkpoint": 2}
    early = compare(select([study([first, second], margin=0.2, **stated)]))
    assert late_of(early) == []
    there = second | {"started": AFTER}
    back = first | {"started": AFTER}
    found = compare(select([study([first, there, back], margin=0.05, **stated)]))
    assert late_of(found) == [] and "margin_source" not in found


def test_the_value_at_the_first_result_is_the_declared_one(study: Callable[..., Path]) -> None:
    none = launch(BEFORE, None, "reference_sql", 2)
    early = launch("2000-01-02T00:00:00Z", 0.05, "reference_sql", 2)
    late = launch(AFTER, 0.3, "reference_sql", 2)
    stated: dict[str, Any] = {"baseline": "reference_sql", "checkpoint": 2}
    found = compare(select([study([none, early, late], margin=0.3, **stated)]))
    assert late_of(found) == [("margin", "changed", {"first": 0.05, "now": 0.3})]
    assert found["margin_source"] == "changed"
    back = launch(AFTER, None, "reference_sql", 2)
    found = compare(select([study([none, early, back], margin=None, **stated)]))
    assert late_of(found) == [("margin", "changed", {"first": 0.05, "now": None})]


def test_a_margin_that_no_launch_had_is_named(study: Callable[..., Path]) -> None:
    first = launch(BEFORE, 0.05, "reference_sql", 2)
    stated: dict[str, Any] = {"baseline": "reference_sql", "checkpoint": 2}
    found = compare(select([study([first], margin=0.2, **stated)]))
    assert late_of(found) == [("margin", "changed", {"first": 0.05, "now": 0.2})]
    assert "0.2 since the last start" in render(found, "md")


def test_studies_that_declare_other_margins_are_not_pooled_without_one(
    study: Callable[..., Path], tmp_path: Path
) -> None:
    first = study([], margin=0.05, baseline="reference_sql")
    second = tmp_path / "second"
    shutil.copytree(first, second)
    state = json.loads((second / "study.json").read_text())
    (second / "study.json").write_text(json.dumps(state | {"name": "other", "margin": 0.5}))
    both = select([first, second])
    for order in ([first, second], [second, first]):
        with pytest.raises(UserError, match="different values of margin: .*Name one: --margin"):
            compare(select(order))
    with pytest.raises(UserError, match="different values of margin"):
        planned(select([first, second]), 0.05, 0.8, 0.05)
    assert compare(both, margin=0.05)["margin"] == 0.05
    # A checkpoint is a secondary measure: runs without it are compared at the end.
    (second / "study.json").write_text(json.dumps(state | {"name": "other", "checkpoint": 1}))
    assert compare(select([first, second]))["margin"] == 0.05
    assert compare(select([first, first]))["margin"] == 0.05
