"""`harness report`: one HTML file of a run or a study that opens without a network."""

from __future__ import annotations

from harness.contracts.hookspecs import CommandSpec, hookimpl

HARNESS_API = 1


@hookimpl
def harness_commands() -> list[CommandSpec]:
    return [
        CommandSpec("report", "harness_report.command:app", "Write a self-contained HTML report."),
    ]
