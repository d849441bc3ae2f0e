"""`harness study`: a matrix of trainings that are identical except for what varies on purpose."""

from __future__ import annotations

HARNESS_API = 1
COMMANDS: dict[str, tuple[str, str]] = {
    "study": ("harness_study.command", "Run a matrix of trainings.")
}
"""Map commands to module and summary, as in `harness.cli`."""
