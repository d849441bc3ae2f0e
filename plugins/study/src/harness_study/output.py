"""The output of a study's run: its log while it runs, its record at the end."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from harness.errors import last_line
from harness.runs.folder import RunFolder
from harness.util.formatting import mean, measured


def job_of(run: Path) -> str | None:
    """Return the key of a run's job."""
    study = RunFolder(run).read().get("study")
    return study["job"] if study else None


def last_line_of(log: Path, since: int = 0) -> str:
    """Return the last non-empty line of a log, from byte `since` on."""
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(since, file.tell() - 4096))
        return last_line(file.read().decode(errors="replace"), "")


def outcome_of(record: Mapping[str, object]) -> str:
    """Return a run's result in a few words; empty if it has none."""
    result = record.get("result")
    if not isinstance(result, dict):
        return ""
    graded = bool(result.get("graded"))
    if record.get("kind") == "eval":
        return f"{measured(graded)} {mean(result.get('accuracy'), graded)}"
    first = mean(result.get("val_accuracy_initial"), graded)
    last = mean(result.get("val_accuracy_final"), graded)
    remark = ", nothing could be learned" if result.get("no_signal") else ""
    return f"{measured(graded)} {first} -> {last}{remark}"
