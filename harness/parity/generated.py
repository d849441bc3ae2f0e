"""Generated scenarios: random model replies by a program's grammar, played by two agents.

One is the program's reference. The same seed gives the same scenarios. A scenario with a difference
is reduced for as long as the difference remains.

As a process: `python -m harness.parity.generated AGENT --count N --seed S --out FILE`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random

from harness import plugins
from harness.contracts.programs import Scenario
from harness.contracts.toolbox import Agent
from harness.errors import PluginError, last_line
from harness.gateway.server import GatewayServer
from harness.mock_model.completion import Reply
from harness.parity.comparison import Similarity, compare
from harness.parity.recorder import Recording, record
from harness.rollout.environments import python_for

CHUNK = 25
"""Scenarios to play before each comparison; the first difference ends the search."""
SHRINK_ROUNDS = 20
PROCESS_S = 3600.0


@dataclass(frozen=True, slots=True)
class Generated:
    """The result of a search over generated scenarios.

    Attributes:
        count: Scenarios that were played.
        seed: Seed of the scenarios.
        difference: The first difference of the reduced example, as text; empty if there is none.
        found_in: Name of the scenario that differed.
        example: The replies of the reduced example, as text.
        max_turns: Turn limit of the reduced example.
    """

    agent: str
    count: int
    seed: int
    difference: str = ""
    found_in: str = ""
    example: tuple[str, ...] = ()
    max_turns: int = 0

    @property
    def passed(self) -> bool:
        """Return whether the agent played all scenarios like the reference."""
        return not self.difference


def scenarios(program: str, count: int, seed: int) -> list[Scenario]:
    """Return `count` random scenarios of a program.

    Raises:
        PluginError: The program has no generator.
    """
    of_program = plugins.program(program)
    made: list[Scenario] = []
    for number in range(count):
        random = Random(f"{seed}/{program}/{number}")
        scenario = of_program.generate(random, f"generated_{number}")
        if scenario is None:
            raise PluginError(
                f"program {program!r} generates no scenarios: "
                "its module of scenarios has no `generate`"
            )
        made.append(scenario)
    return made


class Reference:
    """The reference agent of a program. It plays each scenario once, for all agents.

    Args:
        program: The program's name.
        gateway: A started gateway, for the agents as well.
    """

    def __init__(self, program: str, gateway: GatewayServer) -> None:
        self.program, self._gateway = program, gateway
        reference = plugins.agent_spec(plugins.program(program).reference)
        self._agent: Agent = plugins.load(reference)()
        self._played: dict[str, Recording] = {}

    async def compared(self, agent: Agent, scenarios: Sequence[Scenario]) -> Similarity:
        """Play scenarios with an agent and compare it with the reference."""
        new = [scenario for scenario in scenarios if repr(scenario) not in self._played]
        if new:
            for scenario, recording in zip(new, await self._record(self._agent, new), strict=True):
                self._played[repr(scenario)] = recording
        expected = [self._played[repr(scenario)] for scenario in scenarios]
        return compare("agent", await self._record(agent, scenarios), expected)

    async def _record(self, agent: Agent, scenarios: Sequence[Scenario]) -> list[Recording]:
        return await record(agent, self.program, scenarios, plays=["alone"], gateway=self._gateway)


async def search(agent: Agent, name: str, reference: Reference, count: int, seed: int) -> Generated:
    """Play generated scenarios until one differs, then reduce it."""
    everything = scenarios(reference.program, count, seed)
    for start in range(0, count, CHUNK):
        chunk = everything[start : start + CHUNK]
        result = await reference.compared(agent, chunk)
        if not result.passed:
            first = next(scenario for scenario in chunk if scenario.name == result.failed[0])
            small = await shrink(agent, reference, first)
            again = await reference.compared(agent, [small])
            # An agent with state may behave otherwise the second time.
            shown = again.mismatches or result.mismatches
            replies = tuple(map(_shown, small.replies))
            return Generated(
                name, start + len(chunk), seed, str(shown[0]), first.name, replies, small.max_turns
            )
    return Generated(name, count, seed)


async def shrink(agent: Agent, reference: Reference, scenario: Scenario) -> Scenario:
    """Return a smaller scenario that still differs: fewer replies, shorter ones, fewer turns."""
    for _ in range(SHRINK_ROUNDS):
        for smaller in _smaller(scenario):
            # The first that differs is the greatest step: candidates that leave out a whole reply
            # come first.
            if not (await reference.compared(agent, [smaller])).passed:
                scenario = smaller
                break
        else:
            break
    return scenario


def _smaller(scenario: Scenario) -> list[Scenario]:
    replies = scenario.replies
    made: list[Scenario] = []
    for at in range(len(replies)):
        made.append(replace(scenario, replies=replies[:at] + replies[at + 1 :]))
    if scenario.max_turns > 1:
        made.append(replace(scenario, max_turns=scenario.max_turns - 1))
    for at, reply in enumerate(replies):
        if reply.status != 200:
            continue
        shorter = replace(reply, text=reply.text[: len(reply.text) // 2])
        if reply.text and not reply.tool_calls:
            made.append(replace(scenario, replies=(*replies[:at], shorter, *replies[at + 1 :])))
        if reply.tool_calls and len(reply.tool_calls) > 1:
            fewer = replace(reply, tool_calls=reply.tool_calls[:1])
            made.append(replace(scenario, replies=(*replies[:at], fewer, *replies[at + 1 :])))
    # Results are by name, so every candidate needs one of its own.
    return [replace(smaller, name=f"smaller_{number}") for number, smaller in enumerate(made)]


def _shown(reply: Reply) -> str:
    if reply.status != 200:
        return f"HTTP {reply.status}"
    shown = repr(reply.text)
    for call in reply.tool_calls or ():
        shown += f" calls {call['function']['name']}({call['function']['arguments']})"
    return shown


def search_in_process(name: str, count: int, seed: int) -> Generated:
    """Search in a separate process, with the interpreter of the agent's plugin.

    Raises:
        PluginError: The agent does not exist, or its process failed.
    """
    plugins.agent_spec(name)
    python = python_for(plugins.registry().owner("agent", name))
    with tempfile.TemporaryDirectory(prefix="harness-parity-") as folder:
        out = Path(folder) / "generated.json"
        options = [name, "--count", str(count), "--seed", str(seed), "--out", str(out)]
        try:
            done = subprocess.run(
                [python, "-m", "harness.parity.generated", *options],
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=PROCESS_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise PluginError(
                f"agent {name!r} did not get through {count} generated scenarios in {PROCESS_S:g} s"
            ) from error
        if done.returncode or not out.is_file():
            reason = last_line(done.stderr, "no message")
            reason = reason.removeprefix("harness.errors.PluginError: ")
            raise PluginError(f"agent {name!r} could not play generated scenarios: {reason}")
        result = json.loads(out.read_text(encoding="utf-8"))
    return Generated(**{**result, "example": tuple(result["example"])})


def main(arguments: Sequence[str] | None = None) -> None:
    """Search with one agent and write the result as JSON."""
    parser = argparse.ArgumentParser(prog="python -m harness.parity.generated", description=__doc__)
    parser.add_argument("agent")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.CRITICAL)
    program = plugins.program_of(options.agent)
    agent = plugins.load(plugins.agent_spec(options.agent))()
    with GatewayServer() as gateway:
        reference = Reference(program, gateway)
        result = asyncio.run(search(agent, options.agent, reference, options.count, options.seed))
    options.out.write_text(json.dumps(asdict(result)), encoding="utf-8")


if __name__ == "__main__":
    main()
