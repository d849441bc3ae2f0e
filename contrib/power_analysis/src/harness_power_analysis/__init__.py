"""`harness power`: the seeds and questions that detect an effect, from existing runs."""

from __future__ import annotations

from harness.contracts.hookspecs import CommandSpec, hookimpl

HARNESS_API = 1


@hookimpl
def harness_commands() -> list[CommandSpec]:
    return [
        CommandSpec(
            "power",
            "harness_power_analysis.command:app",
            "Compute the seeds and questions that detect an effect.",
        ),
    ]
