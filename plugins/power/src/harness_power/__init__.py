"""`harness power`: how many seeds and questions find an effect, from the variances of runs that exist."""

from __future__ import annotations

HARNESS_API = 1
COMMANDS: dict[str, tuple[str, str]] = {
    "power": ("harness_power.command", "Seeds and items needed for an effect.")
}
"""Command by name: module and summary, as in `harness.cli`."""
