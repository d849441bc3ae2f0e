"""Check the shadow results of runs: whether their agents acted exactly as the reference agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.errors import ConfigError, NotComparable, PluginError
from harness.runs.schema import RunRecord
from harness.util.formatting import members

if TYPE_CHECKING:
    from harness.runs.reading import Run


def check_shadow(runs: Sequence[Run], permitted: bool = False) -> list[str]:
    """Check the shadow results of runs with strict agents.

    A run that is older than the check is compared, and named in a remark.

    Args:
        permitted: Whether a failed check becomes a remark.

    Returns:
        Remarks for the output.

    Raises:
        NotComparable: A rollout differs from the reference, or not all chosen rollouts were
            checked.
    """
    runs = [run for run in runs if not is_idiomatic(run.record["agent"])]
    remarks: list[str] = []
    rollouts = passed = older = 0
    for run in runs:
        if "shadow" not in run.record:
            older += 1
            continue
        fault = shadow_fault(run.record)
        if fault and not permitted:
            raise NotComparable(
                f"parity differs: the shadow check of {run.name} failed: {fault}. "
                "It is unknown whether it is the same agent as the others. "
                "Leave the run out, correct the agent and run it again, or say --allow parity"
            )
        if fault:
            remarks.append(f"The shadow check of {run.name} failed (allowed): {fault}.")
            continue
        passed += 1
        # A run that is still going has no result yet, and is no fault either.
        shadow = run.record["shadow"]
        rollouts += shadow["checked"] if shadow is not None else 0
    if rollouts:
        remarks.append(
            f"Shadow check: {rollouts} rollouts of {passed} runs, "
            "replayed with the reference agent, are "
            "byte-identical."
        )
    if older:
        remarks.append(
            f"Shadow check: not checked in {older} of {len(runs)} runs of strict agents, "
            "which are older than the check."
        )
    return remarks


def shadow_fault(record: RunRecord) -> str:
    """Return why a shadow check does not prove that the agent is the reference, if so."""
    shadow = record.get("shadow")
    if record["status"] == "running":
        return ""
    if shadow is None:
        return "it has no result"
    if (first := shadow["first_difference"]) is not None:
        differing = shadow["checked"] - shadow["identical"]
        return (
            f"{differing} of {shadow['checked']} rollouts differ, "
            f"first rollout {first['rollout_id']}: "
            f"{first['place']}: expected {first['expected']}, got {first['got']}"
        )
    if shadow["unchecked"] or shadow["reason"]:
        return (
            f"{shadow['unchecked']} rollouts were not checked ({shadow['reason'] or 'no reason'})"
        )
    return "" if shadow["checked"] else "no rollout was checked"


def is_idiomatic(name: str) -> bool:
    """Return whether an agent, installed or not, differs from the reference on purpose."""
    from harness.plugins import agent_spec

    try:
        return not agent_spec(name).strict
    except (
        PluginError,
        ConfigError,
    ):  # a run of another machine with a plugin that is not installed here
        return name.endswith("_idiomatic") or len(members(name)) > 1
