"""`harness report`: one HTML file of a run or a study that opens without a network."""

from __future__ import annotations

HARNESS_API = 1
COMMANDS: dict[str, tuple[str, str]] = {
    "report": ("harness_report.command", "Write a self-contained HTML report.")
}
"""Command by name: module and summary, as in `harness.cli`."""
