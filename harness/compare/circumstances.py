"""Remarks on conditions that may differ between runs: code, libraries, machines, validations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from harness.util.formatting import with_cores

if TYPE_CHECKING:
    from harness.runs.reading import Run


def circumstances(runs: Sequence[Run]) -> list[str]:
    """Return remarks on conditions that may matter: code, library versions, machines."""
    return [*_code_remarks(runs), *_version_remarks(runs), *_machine_remarks(runs)]


def times_compare(runs: Sequence[Run]) -> bool:
    """Return whether all runs used machines of one kind, or equal shares of one."""
    machines, shared = _machines(runs)
    return len(machines) == 1 and len(shared) == 1


def _code_remarks(runs: Sequence[Run]) -> list[str]:
    remarks: list[str] = []
    commits: set[str] = set()
    changed = False
    for run in runs:
        commit = run.record["commit"]
        commits.add(commit["hash"] if commit else "unknown")
        changed = changed or bool(commit and commit["dirty"])
    # Installed releases have no commit, so use their version.
    if commits == {"unknown"}:
        installed = ", ".join(sorted({run.record["harness_version"] for run in runs}))
        remarks.append(f"The commit of the code is not known: harness {installed}, installed.")
    if len(commits) > 1:
        shortened = sorted(commit[:10] for commit in commits)
        remarks.append(f"Runs were made by {len(commits)} commits: {', '.join(shortened)}.")
    if changed:
        remarks.append("Some runs were made with uncommitted changes in the source tree.")
    return remarks


def _version_remarks(runs: Sequence[Run]) -> list[str]:
    recorded: set[str] = set()
    for run in runs:
        recorded.update(run.record["versions"])
    versions: dict[str, set[str]] = {}
    for run in runs:
        # A library that only some runs have differs too: it counts as the version None there.
        for name in recorded:
            versions.setdefault(name, set()).add(str(run.record["versions"].get(name)))
        # Only the frameworks of its agent: arms with other frameworks do not have them at all.
        for name, installed in run.record["frameworks"].items():
            versions.setdefault(name, set()).add(installed)
    remarks = []
    for name, different in sorted(versions.items()):
        if len(different) > 1:
            remarks.append(f"Versions of {name} differ: {', '.join(sorted(different))}.")
    return remarks


def _machine_remarks(runs: Sequence[Run]) -> list[str]:
    remarks: list[str] = []
    machines, shared = _machines(runs)
    if len(machines) > 1:
        remarks.append(f"Machines differ, so times are not comparable: {'; '.join(machines)}.")
    if len(shared) > 1:
        ways = "; ".join(_sharing_text(*way) for way in shared)
        remarks.append(f"Machines were shared unequally, so times are not comparable: {ways}.")
    elif shared and shared[0][0] > 1:
        # Runs side by side slow each other down, but all of them alike.
        remarks.append(
            f"Machines were shared alike, {_sharing_text(*shared[0])}: "
            "times compare with each other, not with those of a run alone."
        )
    return remarks


def _machines(runs: Sequence[Run]) -> tuple[list[str], list[tuple[int, int, str]]]:
    """Return kinds of machines, and ways in which they were shared."""
    kinds: set[str] = set()
    ways: set[tuple[int, int, str]] = set()
    for run in runs:
        kinds.add(_machine(run))
        for launch in run.record["launches"]:
            # Runs at once: 0 outside a study. Cores: 0 if an older record lacks them.
            at_once, cores = launch.get("runs_at_once", 0), launch.get("cores") or 0
            # A run alone has the GPU to itself, with the service or without.
            service = launch.get("gpu_service", "") if at_once > 1 else ""
            ways.add((at_once, cores, service))
    return sorted(kinds), sorted(ways)


def _sharing_text(at_once: int, cores: int, gpu_service: str) -> str:
    if not at_once:
        return f"outside a study{with_cores(cores)}"
    service = f" through {gpu_service.upper()}" if gpu_service else ""
    runs = "run" if at_once == 1 else "runs"
    return f"{at_once} {runs} at a time{with_cores(cores)}{service}"


def _machine(run: Run) -> str:
    hardware = run.record["hardware"]
    gpus = hardware.get("gpus")
    gpu_text = f", {len(gpus)} x {gpus[0]}" if gpus else ""
    return f"{hardware['processor']}, {hardware['cores']} cores{gpu_text}"


def validation_remarks(runs: Sequence[Run]) -> list[str]:
    """Return remarks on validations that are incomplete, or not those of the last step."""
    remarks: list[str] = []
    unscored = total = 0
    resumed: list[str] = []
    for run in runs:
        rows = run.validation()
        unscored += rows["reward"].null_count()
        total += len(rows)
        if len(run.record["launches"]) > 1:
            resumed.append(run.name)
    if unscored:
        remarks.append(
            f"{unscored} of {total} validation rollouts could not be scored; "
            "they count neither as right nor as wrong."
        )
    for run in runs:
        seen = run.validation()["task_id"].n_unique()
        whole = max(run.record["tasks"]["val"], run.validated_tasks())
        if seen < whole:
            remarks.append(f"{run.name}: its last validation holds {seen} of {whole} questions.")
        last, steps = cast(int, run.validation()["step"].max()), run.record["identity"]["steps"]
        if run.trained and last != steps:
            remarks.append(
                f"{run.name}: its last validation is of step {last}, not of the last, {steps}."
            )
    if resumed:
        remarks.append(f"Resumed after an interruption: {', '.join(resumed)}.")
    return remarks
