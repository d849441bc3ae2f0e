"""Policies in other agents than their own: each trained arm in each agent that used it.

A study with `evaluate:` names the arm of an evaluation `TRAINED -> AGENT`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from harness.compare.estimates import crossed_mean
from harness.compare.scores import paired_differences, scores
from harness.compare.starts import over_starts

if TYPE_CHECKING:
    from harness.compare.keys import EstimateData, Used
    from harness.runs.reading import Run

ARROW = " -> "


def transfer(
    arms: Mapping[str, Sequence[Run]], accuracies: Mapping[str, EstimateData], width: float = 1.0
) -> dict[str, dict[str, Used]]:
    """Return the accuracy of every trained arm in every agent that used its policies.

    Args:
        accuracies: By arm.
        width: Largest difference of two rewards.

    Returns:
        By trained arm, then by agent; empty unless several trained arms were used in several
        agents.
    """
    cells: dict[str, dict[str, Sequence[Run]]] = {}
    agents: dict[str, None] = {}
    for name, runs in arms.items():
        trained, agent = _split(name, runs)
        if agent:
            cells.setdefault(trained, {})[agent] = runs
            agents[agent] = None
    if len(cells) < 2 or len(agents) < 2:
        return {}
    made: dict[str, dict[str, Used]] = {}
    for trained, used in cells.items():
        made[trained] = {}
        for agent in agents:
            if agent in used:
                own = cells.get(agent, {}).get(agent) if agent != trained else None
                difference, seeds = _difference(used[agent], own or (), width)
                made[trained][agent] = {
                    "accuracy": accuracies[f"{trained}{ARROW}{agent}"],
                    "difference": difference,
                    "seeds": seeds,
                }
    return made


def _split(name: str, runs: Sequence[Run]) -> tuple[str, str]:
    """Return the trained arm and the agent of an arm of evaluations; no agent for other arms."""
    agent = runs[0].record["agent"]
    suffix = f"{ARROW}{agent}"
    if runs[0].trained or not name.endswith(suffix):
        return name, ""
    return name.removesuffix(suffix), agent


def _difference(
    runs: Sequence[Run], own: Sequence[Run], width: float
) -> tuple[EstimateData | None, int]:
    """Return the difference to the policies that were trained in the agent, and its seeds.

    None and 0 without a common seed: the difference would be one of two single sets of policies.
    """
    common = {run.pairing for run in runs} & {run.pairing for run in own}
    if not common:
        return None, 0
    rows, _ = paired_differences(scores(runs), scores(own))
    estimate = crossed_mean(over_starts(rows), width)
    return (estimate.data(), len(common)) if estimate else (None, 0)
