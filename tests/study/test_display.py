"""What a study shows while it runs: a table that keeps to the terminal, lines where there is none."""

from __future__ import annotations

import os
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.api.console import PlainConsole
from harness.config import load_config
from harness.runs.progress import Progress
from harness_study import display as study_display
from harness_study.display import StudyDisplay, few_cores, time_slices
from harness_study.execute import Standing
from harness_study.plan import Job

ARMS = (
    "langgraph_sql with the schema in its prompt",
    "langgraph_sql with the schema as a tool",
    "short",
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(study_display, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.fixture
def standings() -> list[Standing]:
    jobs = [Job(f"arm{index}-seed0", arm, load_config("cpu")) for index, arm in enumerate(ARMS)]
    return [Standing(job) for job in jobs]


def display(standings: list[Standing], **console: Any) -> tuple[StudyDisplay, StringIO]:
    out = StringIO()
    rows = [{"key": one.job.key, "estimate_s": 60.0} for one in standings]
    plan: Any = {
        "study": "small",
        "jobs": rows,
        "runs_at_once": 1,
        "cores_per_run": 4,
        "gpus": None,
    }
    return StudyDisplay(plan, PlainConsole(file=out, **console)), out


def under_way() -> Progress:
    done = {"rollouts": 200, "done": 112, "expected": 240, "validating": 5, "val_so_far": 0.534}
    return Progress(
        "validating after step 5",
        step=4,
        total_steps=20,
        reward=0.25,
        val_curve={0: 0.3},
        remaining_s=200.0,
        **done,
    )


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_live_table_keeps_to_the_terminal(
    width: int, clock: list[float], standings: list[Standing]
) -> None:
    view, out = display(standings, width=width, force_terminal=True, color_system=None)
    running = standings[0]
    running.state, running.tries, running.began, running.progress = "running", 1, 40.0, under_way()
    running.line = (
        "4 of 20 steps done: reward 0.250, accuracy 30.0 % after step 0, 40 s per step, and so on"
    )
    with view:
        view.show(standings)
        view._live.refresh()
        lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    row = next(line for line in lines if "running" in line)
    for cell in ("4 of 20", "53.4 % so far (112)", "3 min 20 s"):
        assert cell in row, row
    assert row.strip().startswith({80: "langgr..prompt ", 100: "langgraph_s", 160: ARMS[0]}[width])
    names = {line.split("  ")[1] for line in lines if "waiting" in line or "running" in line}
    assert len(names) == 3  # shortened, they still differ
    assert ("1 min" in row) == (width == 160) == (
        "4 of 20 steps" in row
    ) and "…" not in out.getvalue()


def test_without_a_terminal_a_study_says_what_begins_ends_and_stands(
    clock: list[float], standings: list[Standing]
) -> None:
    view, out = display(standings, width=80)
    first = standings[0]

    def printed_lines() -> list[str]:
        view.show(standings)
        lines = out.getvalue().splitlines()
        out.seek(out.truncate(0))
        return lines

    with view:
        first.state, first.tries, first.began, first.line = (
            "running",
            1,
            100.0,
            "verl is being started",
        )
        assert printed_lines() == ["[1/3] arm0-seed0: started"]
        assert printed_lines() == []
        clock[0] += study_display.EVERY_S
        assert printed_lines() == [
            "[1/3] arm0-seed0: verl is being started; running for 30 s",
            "Study small: 0 of 3 done, about 2 min 30 s left",
        ]
        first.progress = Progress(total_steps=20)
        first.line = "starting, which took about 40 s last time; running for 50 s"
        clock[0] += study_display.EVERY_S
        assert printed_lines()[0] == "[1/3] arm0-seed0: starting; running for 1 min 00 s"
        first.progress = Progress("step 1", total_steps=20, rollouts=8)
        assert printed_lines() == []
        first.progress = Progress("step 1", total_steps=20, rollouts=8, val_curve={0: 0.3})
        assert printed_lines() == ["[1/3] arm0-seed0: step 0 of 20, accuracy 30.0 % after step 0"]
        first.progress = under_way()
        clock[0] += study_display.EVERY_S
        assert printed_lines()[0] == (
            "[1/3] arm0-seed0: step 4 of 20, reward 0.250, accuracy 30.0 % after step 0, "
            "53.4 % so far (112 of 240) after step 5, left 3 min 20 s"
        )
        first.state, first.wall_s, first.line = "finished", 61.0, "accuracy 30.0 % -> 60.0 %"
        assert printed_lines() == [
            "[1/3] arm0-seed0: finished, accuracy 30.0 % -> 60.0 %, 1 min 01 s"
        ]
        assert printed_lines() == []


@pytest.mark.parametrize(
    ("runs", "cores", "gpus", "remark"),
    [
        (8, 1, [("0",)] * 8, "--jobs 4"),
        (3, 2, [("0",)] * 3, ""),
        (2, 1, [("0",), ("1",)], ""),
        (2, 1, None, ""),
    ],
)
def test_trainings_that_share_a_gpu_with_few_cores_each_are_remarked_on(
    runs: int, cores: int, gpus: list[tuple[str, ...]] | None, remark: str
) -> None:
    plan: Any = {"runs_at_once": runs, "cores_per_run": cores, "gpus": gpus}
    shown = few_cores(plan)
    assert (remark in shown) if remark else shown == ""


@pytest.mark.parametrize(
    ("gpus", "service", "remarked"),
    [
        ([("0",), ("0",)], False, True),
        ([("0",), ("0",)], True, False),
        ([("0",), ("1",)], False, False),
        (None, False, False),
    ],
)
def test_trainings_that_share_a_gpu_by_time_slices_are_remarked_on(
    gpus: list[tuple[str, ...]] | None,
    service: bool,
    remarked: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    if service:
        os.mkfifo(tmp_path / "control")  # as the service makes it
    plan: Any = {"runs_at_once": 2, "cores_per_run": 8, "gpus": gpus}
    assert ("nvidia-cuda-mps-control -d" in time_slices(plan)) == remarked
