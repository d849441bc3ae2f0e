"""`harness watch`: the report of a run, a study or a folder of runs, live."""

from __future__ import annotations

from harness.contracts.hookspecs import CommandSpec, hookimpl

HARNESS_API = 1


@hookimpl
def harness_commands() -> list[CommandSpec]:
    return [
        CommandSpec(
            "watch",
            "harness_watch.command:app",
            "Show a run or a study live, in a browser or as text.",
        ),
    ]
