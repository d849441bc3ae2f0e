"""`harness study --launcher slurm`: the runs of a study as Slurm jobs."""

from __future__ import annotations

from harness.contracts.hookspecs import LauncherSpec, hookimpl

HARNESS_API = 1


@hookimpl
def harness_launchers() -> list[LauncherSpec]:
    return [
        LauncherSpec("slurm", "harness_slurm.launcher:Slurm", "jobs of Slurm"),
    ]
