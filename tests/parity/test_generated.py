"""Generated scenarios find agents that the written ones do not, and show a small example."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from harness.contracts.toolbox import Toolbox
from harness.gateway.server import GatewayServer
from harness.parity import generated
from harness.parity.comparison import compare
from harness.parity.generated import Generated, Reference, scenarios, search
from harness.parity.recorder import Recording, record
from harness.plugins import agent_spec, agents_of, load
from harness.plugins import program as program_named
from harness.records import Problem
from harness_sql.self_correcting.reference import ReferenceSQL
from harness_sql.tool_loop.reference import ReferenceTools

from .bad_agents import (
    AddsASystemLine,
    ChangesAfterRollouts,
    DropsStop,
    NeverAcceptsNothing,
    Retries,
)

SQL, TOOLS = "self_correcting_sql", "tool_loop"
PLAYED = 200
"""Scenarios of each strict agent here; 2,000 take some minutes an agent: `harness parity AGENT --generated 2000`."""
STRICT = [
    (program, name)
    for program in (SQL, TOOLS)
    for name in agents_of(program)
    if agent_spec(name).strict and not name.startswith("reference_")
]


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayServer]:
    with GatewayServer() as server:
        yield server


@pytest.fixture(scope="module")
def references(gateway: GatewayServer) -> Mapping[str, Reference]:
    return {program: Reference(program, gateway) for program in (SQL, TOOLS)}


def found_with(agent: ReferenceSQL, reference: Reference, count: int = 120) -> Generated:
    return asyncio.run(search(agent, "bad", reference, count, seed=3))


def test_the_same_seed_gives_the_same_scenarios() -> None:
    for program in (SQL, TOOLS):
        first = scenarios(program, 50, seed=1)
        assert first == scenarios(program, 50, seed=1)
        assert first[:20] == scenarios(program, 20, seed=1)
        assert first != scenarios(program, 50, seed=2)


def test_the_grammar_has_what_the_written_scenarios_lack() -> None:
    made = scenarios(SQL, 500, seed=0)
    texts = [[reply.text for reply in one.replies if reply.status == 200] for one in made]
    replies = [text for one in texts for text in one]
    assert "" in replies and "I cannot help with that." in replies
    assert any("SELECT NULL" in text for text in replies)
    assert any(len(text) > 1000 for text in replies)
    drafts = [one[::2] for one in texts]
    returns = [one for one in drafts if len(one) > 2 and one[0] == one[2] != one[1]]
    assert returns, "no scenario comes back to an earlier query"
    assert any(reply.finish_reason == "length" for one in made for reply in one.replies)
    calls = [
        call["function"]
        for one in scenarios(TOOLS, 500, seed=0)
        for reply in one.replies
        for call in reply.tool_calls or ()
    ]
    assert {"{", "[]", '{"sql": 1}'} <= {call["arguments"] for call in calls}
    assert "look_up" in {call["name"] for call in calls}


def test_the_references_play_them_as_themselves(references: Mapping[str, Reference]) -> None:
    assert asyncio.run(search(ReferenceSQL(), "same", references[SQL], 40, seed=5)).passed
    assert asyncio.run(search(ReferenceTools(), "same", references[TOOLS], 40, seed=5)).passed


def test_an_agent_that_never_accepts_nothing_is_shown_by_a_small_example(
    references: Mapping[str, Reference],
) -> None:
    found = found_with(NeverAcceptsNothing(), references[SQL])
    assert not found.passed
    assert len(found.example) == 2 and found.max_turns == 2
    assert "sequence of roles" in found.difference


@pytest.mark.slow
def test_a_tool_agent_that_swallows_wrong_arguments_is_found(
    references: Mapping[str, Reference],
) -> None:
    class Swallows(ReferenceTools):
        async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
            words = await super().solve(problem, toolbox)
            wrong = any(call.fault for call in toolbox.tool_calls)  # type: ignore[attr-defined]
            return "" if wrong else words

    found = asyncio.run(search(Swallows(), "bad", references[TOOLS], 120, seed=3))
    assert not found.passed and len(found.example) == 2
    assert "answer" in found.difference


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "differs"),
    [
        (ChangesAfterRollouts, True),
        (Retries, True),
        (DropsStop, False),  # no scenario, and no run, sends the parameter
        (AddsASystemLine, True),
    ],
)
def test_which_of_the_bad_agents_they_find(
    agent: type[ReferenceSQL], differs: bool, references: Mapping[str, Reference]
) -> None:
    assert found_with(agent(), references[SQL]).passed is not differs


def test_the_process_writes_what_it_found(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    generated.main(["reference_tools", "--count", "5", "--seed", "2", "--out", str(out)])
    found = json.loads(out.read_text())
    assert (found["agent"], found["count"], found["difference"]) == ("reference_tools", 5, "")


@pytest.mark.slow
@pytest.mark.parametrize(("program", "name"), STRICT)
def test_strict_agents_play_them_as_the_reference(
    program: str, name: str, references: Mapping[str, Reference]
) -> None:
    agent = load(agent_spec(name))()
    found = asyncio.run(search(agent, name, references[program], PLAYED, seed=0))
    assert found.passed, found


@pytest.mark.slow
@pytest.mark.parametrize(("program", "name"), STRICT)
def test_strict_agents_answer_an_empty_reply_as_the_reference(
    program: str, name: str, gateway: GatewayServer
) -> None:
    definition = program_named(program)
    empty = [one for one in definition.scenarios if one.name.startswith("empty_reply")]
    assert empty

    def recorded(agent: str) -> list[Recording]:
        return asyncio.run(record(load(agent_spec(agent))(), program, empty, ["alone"], gateway))

    expected, found = recorded(definition.reference), recorded(name)
    verdict = compare(name, found, expected)
    assert verdict.passed, [str(one) for one in verdict.mismatches]
