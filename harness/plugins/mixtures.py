"""Mixtures: several agents of one program that make the rollouts of one training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from harness.contracts.hookspecs import AgentSpec
from harness.errors import ConfigError
from harness.util.formatting import MIXES, members


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
    counts = Counter(agent.name for agent in agents)
    twice = [agent for agent, count in counts.items() if count > 1]
    if twice:
        raise ConfigError(f"agent: {name} names {twice[0]} more than once: name each agent once")
    programs = {agent.name: agent.program for agent in agents}
    if len(set(programs.values())) > 1:
        each = ", ".join(f"{agent} runs {program}" for agent, program in programs.items())
        raise ConfigError(f"agent: {each}. Mix only agents of the same program")
    roles: dict[str, None] = {}
    frameworks: dict[str, None] = {}
    for agent in agents:
        roles |= dict.fromkeys(agent.roles)
        frameworks |= dict.fromkeys(agent.frameworks)
    return AgentSpec(
        name,
        target="",
        summary=f"a mixture of {len(agents)} agents",
        roles=tuple(roles),
        frameworks=tuple(frameworks),
        strict=False,
        program=agents[0].program,
    )
