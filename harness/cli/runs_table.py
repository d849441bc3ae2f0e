"""The table of `harness runs list`: the columns that fit the terminal, and whole ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.api.summaries import shown_status
from harness.cli.common import fitting, results
from harness.runs.monitor import so_far, steps_of
from harness.util.formatting import agent_label, duration, mean

if TYPE_CHECKING:
    from pathlib import Path

    from harness.runs.reading import Run

COLUMNS = ("status", "steps", "accuracy", "seed", "trained roles", "time", "kind", "agent")
"""Columns after the run's id, in their order on the terminal."""
ALWAYS = ("status", "accuracy")
"""Columns that are shown whatever the width."""
BY_WEIGHT = ("steps", "seed", "trained roles", "time", "kind", "agent")
"""Other columns, from the one that is shown first to the one that is left out first."""
USUAL_ID = 60
"""Characters that few ids exceed; the others need not leave so much room in every line."""
GAP = "  "
Listed = tuple["Run", Mapping[str, Any]]
"""A run and its overview."""


def show_runs(listed: Sequence[Listed], runs_dir: Path) -> None:
    """Print a table of runs, with a heading for every folder if there are several."""
    # rich is imported here, because the command's module is imported for `--help` too.
    from rich.cells import cell_len

    lines = [_cells(run, overview) for run, overview in listed]
    ids = [run.folder.path.name for run, _ in listed]
    heads = dict(zip(COLUMNS, COLUMNS, strict=True))
    if any(overview["graded"] for _, overview in listed):
        heads["accuracy"] = "accuracy or reward"
    widths: dict[str, int] = {}
    for name in COLUMNS:
        widths[name] = max(cell_len(text[name]) for text in [heads, *lines])
    out = results()
    id_width, columns = _fitting(ids, lines, widths, out.width)

    def line(first: str, cells: Mapping[str, str]) -> str:
        padded = [_padded(first, id_width)]
        for name in columns:
            padded.append(_padded(cells[name], widths[name]))
        return GAP.join(padded).rstrip()

    head = line("run", heads)
    rule = "-" if out.options.ascii_only else "─"
    out.print(head)
    out.print(rule * (id_width + sum(len(GAP) + widths[name] for name in columns)))
    by_folder = _by_folder(listed, runs_dir)
    for folder, members in by_folder.items():
        if len(by_folder) > 1 or folder != "./":
            out.print(folder, style="bold")
        for place in members:
            # An id that is too long has a line of its own: in one piece, it can be copied.
            if cell_len(ids[place]) > id_width:
                out.print(ids[place])
                out.print(line("", lines[place]))
            else:
                out.print(line(ids[place], lines[place]))


def _cells(run: Run, overview: Mapping[str, Any]) -> dict[str, str]:
    """Return a run's cells by column."""
    progress, graded = run.progress, overview["graded"]
    validated = max(progress.val_curve, default=0)
    status = shown_status(overview)
    accuracy = so_far(progress) or mean(overview["accuracy_final"], graded)
    if validated and status == "running" and progress.validating is None:
        accuracy = f"{mean(progress.val_curve[validated], graded)} after step {validated}"
    if overview["accuracy_initial"] is not None:
        accuracy = f"{mean(overview['accuracy_initial'], graded)} -> {accuracy}"
    time = duration(overview["wall_s"])
    if overview["left_s"] is not None:
        time = f"left {duration(overview['left_s'])}"
    return {
        "status": status,
        "steps": steps_of(progress),
        "accuracy": accuracy,
        "seed": str(overview["seed"]),
        "trained roles": overview["agent_match"],
        "time": time,
        "kind": overview["kind"],
        "agent": agent_label(overview["agent"]),
    }


def _fitting(
    ids: Sequence[str],
    lines: Sequence[Mapping[str, str]],
    widths: Mapping[str, int],
    width: int,
) -> tuple[int, list[str]]:
    """Return the width of the column of ids, and the other columns that fit.

    Columns in which runs differ take precedence. Ids contain the agent, so that column is the last.
    """
    from rich.cells import cell_len

    left = width
    for name in ALWAYS:
        left -= len(GAP) + widths[name]
    most = min(left, max(USUAL_ID, width // 2))
    id_width = max((cell_len(name) for name in ids if cell_len(name) <= most), default=len("run"))
    left -= id_width
    agents_in_ids = all(text["agent"] in name for name, text in zip(ids, lines, strict=True))

    def is_constant_or_implied(name: str) -> bool:
        return len({text[name] for text in lines}) == 1 or (name == "agent" and agents_in_ids)

    with_gap = {name: len(GAP) + widths[name] for name in BY_WEIGHT}
    others, _ = fitting(sorted(BY_WEIGHT, key=is_constant_or_implied), with_gap, left)
    return id_width, [name for name in COLUMNS if name in {*ALWAYS, *others}]


def _by_folder(listed: Iterable[Listed], runs_dir: Path) -> dict[str, list[int]]:
    """Return places in the list by folder; the folder with the newest run is the last."""
    found: dict[str, list[int]] = {}
    for place, (run, _) in enumerate(listed):
        folder = f"{run.folder.path.parent.relative_to(runs_dir.absolute())}/"
        # Moved to the end, since runs are listed oldest first.
        found[folder] = [*found.pop(folder, []), place]
    return found


def _padded(text: str, width: int) -> str:
    from rich.cells import cell_len

    return text + " " * (width - cell_len(text))
