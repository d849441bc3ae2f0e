"""Check that agents used their tools. Otherwise the comparison does not measure the agents."""

from __future__ import annotations

from collections.abc import Sequence

from harness.compare.columns import parsed_of
from harness.compare.keys import Arm, Exempt, Pair

UNUSED_TOOLS = "unused_tools"
"""Value of `allow` that permits agents that never used their tools."""


def heed_unused_tools(pairs: Sequence[Pair], arms: Sequence[Arm], *, allowed: bool) -> list[Exempt]:
    """Refuse verdicts if an agent never used the tools that it offered: they would compare parsers.

    Args:
        allowed: Whether such verdicts are permitted.

    Returns:
        The exceptions made; empty if nothing is refused.
    """
    by_name = {arm["name"]: arm for arm in arms}
    exempt: dict[str, str] = {}
    for pair in pairs:
        arm, base = by_name[pair["arm"]], by_name[pair["baseline"]]
        unused: dict[str, str] = {}
        for either in (arm, base):
            if _never_called(either):
                unused[either["name"]] = parsed_of(either)
        # Arms of one agent share the fault, so their difference is not that of two parsers.
        if arm["agent"] == base["agent"] or not unused:
            continue
        if allowed:
            exempt |= unused
            continue
        # Each with its counts, so that a reader sees whether the parser or the policy is at fault.
        reasons = []
        for name, counts in unused.items():
            reasons.append(f"{name}: {counts}")
        pair["verdict"] = "refused"
        pair["refused"] = (
            "tools were offered and never used, calls parsed / looked like calls of "
            f"{', '.join(reasons)}; --allow {UNUSED_TOOLS} gives a verdict all the same"
        )
    return [{"key": UNUSED_TOOLS, "why": "allowed", "values": exempt}] if exempt else []


def _never_called(arm: Arm) -> bool:
    """Return whether no seed of an arm called its tools."""
    # If one seed called them, the server can parse the calls of this agent.
    return all(run["tools_unused"] for run in arm["per_seed"])
