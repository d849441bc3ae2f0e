"""Agents of Agent Lightning 0.2 and 0.3, and the reward that an agent gives itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from harness.contracts.hookspecs import AdapterSpec, AgentSpec, RewardSpec, hookimpl

HARNESS_API = 1


@hookimpl
def harness_rewards() -> list[RewardSpec]:
    return [
        RewardSpec(
            "from_agent",
            f"{__name__}.reward:FromAgent",
            "what the agent itself returned or emitted as its reward",
            ranged=True,
            graded=True,
        )
    ]


@hookimpl
def harness_adapters() -> list[AdapterSpec]:
    return [
        AdapterSpec("agent_lightning", f"{__name__}:adapt", "agents that are a LitAgent"),
    ]


def adapt(found: object, spec: AgentSpec) -> Callable[[], Any] | None:
    """Return what makes an agent of a `LitAgent` class or object; None for anything else."""
    from agentlightning import LitAgent

    from harness_agent_lightning.agent import LitRollouts

    if isinstance(found, type) and issubclass(found, LitAgent):
        return partial(LitRollouts, found, spec.roles)
    if isinstance(found, LitAgent):  # made by a decorator such as `@agl.rollout`
        return partial(LitRollouts, lambda: found, spec.roles)
    return None
