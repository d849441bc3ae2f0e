"""`harness study`: a matrix of trainings that share everything but what is varied on purpose."""

from __future__ import annotations

HARNESS_API = 1
COMMANDS: dict[str, tuple[str, str]] = {
    "study": ("harness_study.command", "Run a matrix of trainings.")
}
"""Command by name: module and summary, as in `harness.cli`."""
