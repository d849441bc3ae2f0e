"""Check the shadow results of runs: whether their agents acted exactly as the reference agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.errors import NotComparable, PluginError
from harness.runs.schema import RunRecord

if TYPE_CHECKING:
    from harness.compare.runs import Run


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
    older = [run.name for run in runs if "shadow" not in run.record]
    checked = [run for run in runs if "shadow" in run.record]
    failed = {run.name: why for run in checked if (why := shadow_fault(run.record))}
    if failed and not permitted:
        name, why = next(iter(failed.items()))
        raise NotComparable(
            f"parity differs: the shadow check of {name} failed: {why}. "
            "It is unknown whether it is the same agent as the others. "
            "Leave the run out, correct the agent and run it again, or say --allow parity"
        )
    remarks = [
        f"The shadow check of {name} failed (allowed): {why}." for name, why in failed.items()
    ]
    passed = [run.record["shadow"] for run in checked if run.name not in failed]
    rollouts = sum(shadow["checked"] for shadow in passed if shadow is not None)
    if rollouts:
        remarks.append(
            f"Shadow check: {rollouts} rollouts of {len(passed)} runs, "
            "replayed with the reference agent, are "
            "byte-identical."
        )
    if older:
        remarks.append(
            f"Shadow check: not checked in {len(older)} of {len(runs)} runs of strict agents, "
            "which are older."
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
    except PluginError:  # a run of another machine with a plugin that is not installed here
        return name.endswith("_idiomatic")
