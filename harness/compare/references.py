"""Figures published by others, to be shown beside ours and never among them."""

from __future__ import annotations

import json
from pathlib import Path

from harness.compare.keys import Reference


def reference_rows(task_set: str | None = None) -> list[Reference]:
    """Published rows with their source spelt out; only those of one task set where it is named."""
    data = json.loads(Path(__file__).with_name("references.json").read_text(encoding="utf-8"))
    rows: list[Reference] = data["rows"]
    return [
        {**row, "source": data["sources"][row["source"]]}
        for row in rows
        if task_set is None or row["task_set"] == task_set
    ]


def reference_note() -> str:
    """The sentence that stands above such rows."""
    data = json.loads(Path(__file__).with_name("references.json").read_text(encoding="utf-8"))
    return str(data["note"])
