"""`harness power`: the seeds and questions that detect an effect, from existing runs."""

from __future__ import annotations

HARNESS_API = 1
COMMANDS: dict[str, tuple[str, str]] = {
    "power": (
        "harness_power_analysis.command",
        "Compute the seeds and questions that detect an effect.",
    )
}
"""Map commands to module and summary, as in `harness.cli`."""
