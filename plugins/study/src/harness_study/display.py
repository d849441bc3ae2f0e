"""The display of a running study: its matrix live on a terminal, otherwise lines."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NotRequired, Self, TypedDict

from harness.cli.common import fitting, table
from harness.runs.monitor import cells, standing
from harness.training.provenance import gpu_service
from harness.util.formatting import duration, printable, with_cores, without_middle

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from harness_study.costs import PlannedCost
    from harness_study.execute import Standing


class PlannedJob(TypedDict):
    """One run in `--dry-run`."""

    key: str
    arm: str
    seed: int
    kind: str
    action: str
    why: str
    steps: int | None
    estimate_s: float | None
    estimate_from: str | None


class Plan(TypedDict):
    """The content of `--dry-run --json`."""

    study: str
    jobs: list[PlannedJob]
    to_run: int
    estimate_s: float | None
    runs_at_once: int
    cores_per_run: int
    gpus: list[tuple[str, ...]] | None
    without_estimate: int
    differences: dict[str, dict[str, Any]]
    uncertified: NotRequired[list[str]]
    """Strict agents that need a parity certificate first."""
    checkpoint_bytes: NotRequired[int]
    """Least disk space of the checkpoints of the trainings still to run, if known."""
    free_bytes: NotRequired[int]
    """Free space on the disk of the runs."""
    checkpoint_advice: NotRequired[str]
    """Options that save disk space; empty if there are none."""
    cost: NotRequired[PlannedCost]
    """Estimate for the trainings still to run, if a similar one was measured."""
    seeds_for_equivalence: NotRequired[int]
    """Fewest seeds with which a non-identical arm can be *equivalent*, if the study has fewer."""


GB = 1e9
"""Bytes of a gigabyte."""
EVERY_S = 30.0
"""Seconds between progress lines without a terminal."""
COLUMNS = ("arm", "seed", "state", "step", "reward", "accuracy", "mean reward", "left", "time", "")
"""Columns of the live table; the last is a run's latest output line."""
OPTIONAL = {"left": 12, "reward": 16, "time": 24}
"""Columns from the one that is shown first, with the width that each must leave for arms."""
BORDER = 3
"""Width of a column's border; a table has 1 more."""
LINE_CHARS = 24
"""Narrowest useful width for a run's output line."""
STYLES = {"running": "bold cyan", "finished": "green", "skipped": "dim", "failed": "red"}


class StudyDisplay:
    """The matrix live on a terminal.

    Otherwise lines for starts, ends, validations, and at intervals.
    """

    def __init__(self, plan: Plan, console: Console) -> None:
        self._whole = plan
        self._plan = {row["key"]: row for row in plan["jobs"]}
        self._name = plan["study"]
        self._console = console
        self._at_once: int = plan["runs_at_once"]
        self._seen: dict[str, tuple[str, int]] = {}
        self._validated: dict[str, int] = {}
        self._printed = time.monotonic()
        self._live: Any = None

    def __enter__(self) -> Self:
        if self._at_once > 1:
            self._console.print(f"{self._name}: {sharing(self._whole)}")
            if self._whole["cores_per_run"] == 1:
                self._console.print(
                    "With one core per run, Ray may exceed its own start limit of 15 s."
                )
        if self._console.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, refresh_per_second=2, transient=True)
            self._live.start()
        return self

    def __exit__(self, *unused: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, standings: list[Standing]) -> None:
        """Update the display."""
        if self._live is not None:
            self._live.update(self._table(standings))
            return
        due = time.monotonic() - self._printed >= EVERY_S
        if due:
            self._printed = time.monotonic()
        for index, run in enumerate(standings, 1):
            key, seen = run.job.key, (run.state, run.tries)
            validated = len(run.progress.val_curve) if run.progress is not None else 0
            running = run.state == "running"
            if self._seen.get(key) != seen and run.state != "waiting":
                text = f"{run.state}, {run.line[:160]}".rstrip(", ")
                if running and run.tries:
                    text = "started"
                if run.wall_s is not None:
                    text += f", {duration(run.wall_s)}"
            elif running and (due or validated > self._validated.get(key, 0)):
                text = self._standing(run)
            else:
                continue
            self._seen[key], self._validated[key] = seen, validated
            self._console.print(f"[{index}/{len(standings)}] {key}: {text}")
        if due:
            self._console.print(self._title(standings))

    def _title(self, standings: list[Standing]) -> str:
        done = 0
        for run in standings:
            done += run.state in ("finished", "skipped", "failed")
        left_s = self._left_s(standings)
        left = "" if left_s is None else f", about {duration(left_s)} left"
        return f"Study {self._name}: {done} of {len(standings)} done{left}"

    @staticmethod
    def _standing(run: Standing) -> str:
        """Return a run's progress or, during its start, what it does and the elapsed time."""
        progress = run.progress
        if progress is not None and progress.rollouts:
            return standing(progress)
        # Before a run has a record, its output is all that is known of it.
        activity = run.line[:120] if progress is None else progress.phase
        return f"{activity or 'starting'}; running for {duration(_spent_s(run))}"

    def _table(self, standings: list[Standing]) -> Table:
        return fitted(
            [_cells(run) for run in standings], self._title(standings), self._console.width
        )

    def _left_s(self, standings: list[Standing]) -> float | None:
        from harness_study.timing import makespan_s

        remaining: list[float] = []
        for run in standings:
            if run.state not in ("waiting", "running"):
                continue
            # The run's own speed is the best estimate, then the plan's, then finished runs' mean.
            progress = run.progress
            if run.state == "running" and progress is not None and progress.remaining_s is not None:
                remaining.append(progress.remaining_s)
                continue
            estimate = self._plan[run.job.key]["estimate_s"]
            if estimate is None:
                walls_s = [other.wall_s for other in standings if other.wall_s]
                if not walls_s:
                    return None
                estimate = sum(walls_s) / len(walls_s)
            remaining.append(max(0.0, estimate - (_spent_s(run) or 0.0)))
        return makespan_s(remaining, self._at_once)


def _spent_s(run: Standing) -> float | None:
    if run.began is not None and run.wall_s is None:
        return time.monotonic() - run.began
    return run.wall_s


def _cells(run: Standing) -> dict[str, str]:
    """Return a row of the live table, by column."""
    progress = run.progress
    spent_s = _spent_s(run)
    shown = {"arm": run.job.arm, "seed": str(run.job.seed), "state": run.state}
    shown["time"] = "" if spent_s is None else duration(spent_s)
    if progress is not None:
        for name, cell in cells(progress).items():
            shown[name] = cell.replace(f" of {progress.expected})", ")")
        # What a run that was ended would still have needed is no time that anyone waits for.
        shown["left"] = shown["left"] if run.state == "running" else ""
    return shown | {"": run.line}


def _widest(rows: Sequence[Mapping[str, str]], head: str) -> int:
    """Return the width of a column in cells of the terminal, of which some letters take two."""
    from rich.cells import cell_len

    most = cell_len(head)
    for row in rows:
        most = max(most, cell_len(row.get(head, "")))
    return most


def _widths(rows: Sequence[Mapping[str, str]]) -> dict[str, int]:
    """Return the widths with borders of columns with text, except the arm and the run's output."""
    widths: dict[str, int] = {}
    for head in COLUMNS:
        if head not in ("arm", "") and any(row.get(head) for row in rows):
            widths[head] = _widest(rows, head) + BORDER
    return widths


def fitted(rows: Sequence[Mapping[str, str]], title: str, width: int) -> Table:
    """Return a table that fits a terminal, with fewer columns and shorter arms if needed."""
    from rich.text import Text

    widths = _widths(rows)
    # The arm and the run's output get what the other columns leave.
    room = width - 1 - BORDER
    for head, taken in widths.items():
        if head not in OPTIONAL:
            room -= taken
    # The names of arms are what a reader looks for, so other columns are left out first.
    arm = _widest(rows, "arm")
    least = {head: min(arm, left) for head, left in OPTIONAL.items()}
    optional = [head for head in OPTIONAL if head in widths]
    others, room = fitting(optional, widths, room, least, in_order=True)
    arm = min(arm, max(room, 8))
    heads = ["arm"]
    for head in widths:
        if head in others or head not in OPTIONAL:
            heads.append(head)
    # A run's output is shown only where there is room for words.
    if (line := room - arm - BORDER) >= LINE_CHARS:
        heads.append("")
    shown = table(*heads, title=title, no_wrap=True)
    for row in rows:
        # The ends of names distinguish arms better than their middle.
        fields = {**row, "arm": without_middle(row["arm"], arm), "": row.get("", "")[:line]}
        texts = []
        for head in heads:
            texts.append(Text(printable(fields.get(head, "")), _style(head, row)))
        shown.add_row(*texts)
    return shown


def _style(head: str, row: Mapping[str, str]) -> str:
    return STYLES.get(row["state"], "dim") if head == "state" else ""


def sharing(plan: Plan) -> str:
    """Return `4 at a time with 16 cores each`."""
    text = f"{plan['runs_at_once']} at a time{with_cores(plan['cores_per_run'])}"
    if plan["gpus"]:
        # Runs may share GPUs: each set is named once.
        sets = map("+".join, dict.fromkeys(plan["gpus"]))
        text += f" on GPU {', '.join(sets)}"
    return text


CORES_TO_SHARE_A_GPU = 2
"""Cores per training below which `few_cores` remarks on trainings that share a GPU.

Measured with a model of 0.5 billion parameters, two GPUs and 32 cores: fifteen trainings with two
cores each made more steps per second than nine (results/studies/qwen-roles), sixteen made fewer
than eight (qwen-scaffolds). On one GPU with 16 cores six made 1.3 times the steps of four
(qwen-worth). Less than two cores per training were not measured.
"""


def shares_gpus(plan: Plan) -> bool:
    """Return whether several runs use one GPU at the same time."""
    gpus = plan["gpus"] or []
    return len(set(gpus)) < len(gpus)


def time_slices(plan: Plan) -> str:
    """Return a remark if trainings share a GPU without NVIDIA's Multi-Process Service."""
    if not shares_gpus(plan) or gpu_service():
        return ""
    return (
        "Runs take turns on the GPU that they share. NVIDIA's Multi-Process Service runs them "
        "together and halved an update in one study (docs/studies.md): "
        "start nvidia-cuda-mps-control -d before the study."
    )


def few_cores(plan: Plan) -> str:
    """Return a remark if trainings share a GPU with few cores each; empty otherwise."""
    cores = plan["cores_per_run"]
    # Without known cores (0) there is nothing to compare.
    if not shares_gpus(plan) or not 0 < cores < CORES_TO_SHARE_A_GPU:
        return ""
    total = cores * plan["runs_at_once"]
    advised = max(1, total // CORES_TO_SHARE_A_GPU)
    return (
        f"Trainings that share a GPU have {cores} core{'s' * (cores > 1)} each, which may limit them. "
        f"With {CORES_TO_SHARE_A_GPU} cores each: --jobs {advised}."
    )


def is_short(plan: Plan) -> bool:
    """Return whether the checkpoints of a plan do not fit on the disk, as far as is known."""
    return plan.get("checkpoint_bytes", 0) > plan.get("free_bytes", 0)


def space_text(plan: Plan) -> str:
    """Return the disk space of a plan's checkpoints in one line, with advice if it is too little.

    The plan has `checkpoint_bytes` and `free_bytes`.
    """
    needed, free = plan["checkpoint_bytes"] / GB, plan["free_bytes"] / GB
    text = f"Checkpoints: at least {needed:.1f} GB. Free on the disk: {free:.1f} GB."
    if is_short(plan):
        text += " Trainings fail when the disk is full: choose another disk with --runs-dir"
        if advice := plan.get("checkpoint_advice"):
            text += f", or keep fewer checkpoints with {advice}"
        text += "."
    return text
