"""`harness study`: a matrix of trainings that are identical except for what varies on purpose."""

from __future__ import annotations

from harness.contracts.hookspecs import CommandSpec, LauncherSpec, hookimpl

HARNESS_API = 1


@hookimpl
def harness_commands() -> list[CommandSpec]:
    return [
        CommandSpec("study", "harness_study.command:app", "Run a matrix of trainings."),
    ]


@hookimpl
def harness_launchers() -> list[LauncherSpec]:
    return [
        LauncherSpec("local", "harness_study.launchers:Local", "processes on this machine"),
    ]
