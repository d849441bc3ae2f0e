"""Mixtures: several agents of one program that make the rollouts of one training."""

from __future__ import annotations

from collections.abc import Sequence

from harness.contracts.hookspecs import AgentSpec
from harness.errors import ConfigError
from harness.util.formatting import MIXES, agent_label, members


def one_agent(name: str) -> str:
    """Return the name of an agent, and refuse a mixture, which only a training runs.

    Raises:
        ConfigError: The name is of a mixture.
    """
    agents = members(name)
    if len(agents) > 1:
        raise ConfigError(
            f"agent: {name} mixes agents, and only a training runs a mixture. "
            f"Name one of them: {' or '.join(agents)}"
        )
    return name


def mixture_of(agents: Sequence[AgentSpec]) -> AgentSpec:
    """Return a spec for a mixture, with the roles and frameworks of all its agents.

    It is not strict, since its agents may differ. It has no target: a runner has one agent.

    Raises:
        ConfigError: An agent is named twice, or the agents do not share their program, and with it
            the inputs of their prompts and the form of their answers.
    """
    name = MIXES.join(agent.name for agent in agents)
    program = agents[0].program
    known: set[str] = set()
    roles: dict[str, None] = {}
    frameworks: dict[str, None] = {}
    for agent in agents:
        label = agent_label(agent.name)
        if label in known:
            raise ConfigError(
                f"agent: {name} has {label} more than once, and records could not tell them apart. "
                "Name each agent once"
            )
        if agent.program != program:
            raise ConfigError(
                f"agent: {agents[0].name} runs {program}, {agent.name} runs {agent.program}. "
                "Mix only agents of the same program"
            )
        known.add(label)
        roles |= dict.fromkeys(agent.roles)
        frameworks |= dict.fromkeys(agent.frameworks)
    return AgentSpec(
        name,
        target="",
        summary=f"a mixture of {len(agents)} agents",
        roles=tuple(roles),
        frameworks=tuple(frameworks),
        strict=False,
        program=program,
    )
