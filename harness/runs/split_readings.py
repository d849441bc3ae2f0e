"""Readings of reserved splits: which policy was measured on which split, and when.

runs/readings.jsonl      one reading per line, in order of time; lines are only appended
"""

from __future__ import annotations

import fcntl
import getpass
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.runs.folder import RunFolder, now
from harness.runs.record_types import fault
from harness.runs.schema import Reading, RunRecord
from harness.util.parsing import parse_json

FILE = "readings.jsonl"
_COMPARED = ("task_set", "split", "agent", "model", "max_turns")
"""Fields that are equal in readings of one comparison."""


def write_down(folder: RunFolder, record: RunRecord) -> Reading:
    """Add a reading of the run's validation split to the folder's file, and to the run's record.

    Raises:
        UserError: The file cannot be written, or one of its lines is no reading.
    """
    parent = record.get("parent")
    reading: Reading = {
        "at": now(),
        "by": f"{_user()}@{platform.node()}",
        "run": folder.id,
        "task_set": record["config"]["task"]["name"],
        "split": record["config"]["task"]["val_split"],
        "agent": record["agent"],
        "model": record["identity"]["model"],
        "max_turns": record["identity"]["max_turns"],
        "trained": f"{parent['run']} step {parent['step']}" if parent else "",
        "earlier": [],
    }
    path = folder.path.parent / FILE
    try:
        with path.open("a+", encoding="utf-8") as file:
            # Hold the lock from the first read to the write, so that concurrent runs see each
            # other.
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            for number, line in enumerate(file, 1):
                earlier = _read(path, number, line)
                if _alike(earlier, reading):
                    reading["earlier"].append(earlier["run"])
            file.write(json.dumps(reading, ensure_ascii=False) + "\n")
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}. A reserved split may be read only if the "
            "reading can be recorded there"
        ) from error
    folder.update(reading=reading)
    return reading


def _read(path: Path, number: int, line: str) -> Reading:
    try:
        reading = parse_json(line)
    except ValueError:
        reading = None
    if not isinstance(reading, dict) or fault(reading, Reading):
        raise UserError(
            f"{path}, line {number} is no reading of a reserved split: "
            "restore the file, or move it away"
        )
    return reading  # type: ignore[return-value]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def _alike(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return whether two readings used the same questions."""
    return all(first[key] == second[key] for key in _COMPARED)
