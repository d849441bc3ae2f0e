"""Tables of a report's manifest: the runs, what must be identical, and parity certificates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.compare.columns import Table
from harness.compare.identity import differences
from harness.runs.monitor import steps_of
from harness.util.formatting import duration
from harness.util.parsing import flatten

if TYPE_CHECKING:
    from harness.runs.reading import Run
    from harness.runs.schema import Certificate


def manifest(runs: Sequence[Run]) -> list[Table]:
    """Return all tables of the manifest; none without runs."""
    return [_runs(runs), _identity(runs), _parity(runs)] if runs else []


def _runs(runs: Sequence[Run]) -> Table:
    heads = [
        "run",
        "arm",
        "seed",
        "status",
        "steps",
        "launches",
        "time",
        "commit",
        "machine",
        "framework versions",
    ]
    rows = []
    for run in runs:
        record = run.record
        versions = [f"{name} {version}" for name, version in record["frameworks"].items()]
        rows.append(
            [
                run.id,
                run.arm,
                str(run.seed),
                run.state,
                steps_of(run.progress),
                str(len(record["launches"]) or 1),
                _time(run),
                _code(run),
                f"{record['hardware']['processor']}, {record['hardware']['cores']} cores",
                ", ".join(versions) or "none",
            ]
        )
    return Table("runs", "Runs", heads, rows)


def _time(run: Run) -> str:
    """Return the time that a run took, or the time that it still needs."""
    result = run.record["result"]
    if result:
        return duration(result["wall_s"])
    left_s = run.progress.remaining_s
    return "-" if left_s is None else f"left {duration(left_s)}"


def _code(run: Run) -> str:
    """Return the commit of a run's code."""
    commit = run.record["commit"]
    if not commit:
        return "no checkout"
    return f"{commit['hash'][:10]}{' (changed)' if commit['dirty'] else ''}"


def _identity(runs: Sequence[Run]) -> Table:
    """Return what must be identical: the value, or the number of different values."""
    identities: list[dict[str, Any]] = []
    keys: dict[str, None] = {}
    for run in runs:
        identity = flatten(run.record["identity"])
        identities.append(identity)
        keys |= dict.fromkeys(identity)
    # Keys that follow the seed differ without being forbidden, and are marked as such.
    forbidden = {difference.key for difference in differences(runs)}
    rows = []
    for key in keys:
        # A key that a run lacks counts as a value: absence is a difference too.
        distinct: dict[str, None] = {}
        for identity in identities:
            distinct[str(identity.get(key, "absent"))] = None
        values = list(distinct)
        same = "same in all" if len(values) == 1 else "by seed"
        if key in forbidden:
            same = f"{len(values)} values"
        shown = "; ".join(values[:4])
        rows.append([key, same, f"{shown} ..." if len(values) > 4 else shown])
    return Table("identity", "What must be identical", ["key", "", "value"], rows)


def _parity(runs: Sequence[Run]) -> Table:
    by_agent: dict[str, list[Run]] = {}
    for run in runs:
        by_agent.setdefault(run.record["agent"], []).append(run)
    rows = [_parity_row(agent, agent_runs) for agent, agent_runs in by_agent.items()]
    heads = ["agent", "parity", "certificate", "scenarios", "accepted differences", "shadow check"]
    return Table("parity", "Parity certificates", heads, rows)


def _parity_row(agent: str, runs: Sequence[Run]) -> list[str]:
    """Return the cells of an agent: its first certificate, and the shadow checks of all runs."""
    from harness.plugins import is_reference

    first: Certificate | None = None
    for run in runs:
        first = first or run.parity
    if first is None:
        kind = "the reference" if is_reference(agent) else "no certificate"
        return [agent, kind, "", "", "", _shadow(runs)]
    return [
        agent,
        "same agent, certified" if first["strict"] else "idiomatic: measured, not the same",
        first["hash"],
        str(first["scenarios"]),
        ", ".join(first["accepted"]) or "none",
        _shadow(runs),
    ]


def _shadow(runs: Sequence[Run]) -> str:
    """Return a summary of the shadow checks of one agent's runs."""
    checked_runs = checked = identical = unchecked = 0
    for run in runs:
        shadow = run.record.get("shadow")
        if shadow is None:
            continue
        checked_runs += 1
        checked += shadow["checked"]
        identical += shadow["identical"]
        unchecked += shadow["unchecked"]
    if not checked_runs:
        return "not checked"
    left = f", {unchecked} not checked" if unchecked else ""
    return f"{identical} of {checked} rollouts identical{left}"
