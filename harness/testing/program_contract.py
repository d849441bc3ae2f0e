"""The contract of every program, as a test class to inherit.

    from harness.testing.program_contract import ProgramContract

    class TestContract(ProgramContract):
        program = "my_program"

The tests cannot be overridden. Needs pytest and nothing else.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from harness import plugins
from harness.contracts.programs import Program
from harness.mock_model.completion import Reply
from harness.parity.comparison import changed_together
from harness.parity.recorder import Recording, record
from harness.records import Attempt
from harness.testing.calls import transition
from harness.testing.data_contract import Contract
from harness.util.branches import parted

NEEDED = (
    ("wrong_then_fixed", "several_rounds"),
    ("never_approved", "call_after_the_limit"),
    ("long_result",),
    ("server_error",),
    ("rate_limited",),
    ("refused",),
    ("broken_connection",),
    ("timeout",),
)
"""Scenarios for the contract of agents, one of each group."""


class ProgramContract(Contract):
    """Requirements of parity, the contract of agents and records. Set `program` to its name."""

    program: ClassVar[str] = ""

    @pytest.fixture(scope="class")
    @classmethod
    def made(cls) -> Program:
        """Return the program, built as in a run."""
        assert cls.program, "set `program` to the program's name"
        return plugins.program(cls.program)

    @pytest.fixture(scope="class")
    @classmethod
    def recordings(cls, made: Program) -> list[Recording]:
        """Record the reference in every scenario, alone and concurrently."""
        agent = plugins.load(plugins.agent_spec(made.reference))()
        return asyncio.run(record(agent, cls.program))

    def test_the_reference_is_an_agent_of_it(self, made: Program) -> None:
        spec = plugins.agent_spec(made.reference)
        assert plugins.program_of(spec.name) == self.program
        assert spec.roles == made.roles and spec.strict
        assert {*made.checkers, *made.revisers} <= set(made.roles)
        assert isinstance(made.calls_tools, bool)

    def test_its_environment_is_there(self, made: Program) -> None:
        assert made.environment == "" or plugins.environment(made.environment).tools

    def test_hashes_are_the_same_in_another_process(self, made: Program) -> None:
        # Another process has another order of sets, as two runs have.
        code = (
            "from harness.plugins import program\n"
            f"made = program({self.program!r})\n"
            "print(made.prompts_hash, made.scenarios_hash)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == [made.prompts_hash, made.scenarios_hash]

    def test_turns_are_of_all_calls_or_there_are_no_drafts(self, made: Program) -> None:
        calls = tuple(transition(role, index) for index, role in enumerate(made.roles))
        attempt = Attempt("r", "a", "ok", "", "x", calls, (), (), 0.0, 0.0)
        assert not made.turns(replace(attempt, transitions=()))
        turns = made.turns(attempt)
        assert len(turns) in (0, len(calls)), f"{len(turns)} turns of {len(calls)} calls"
        for call, turn in zip(calls, turns, strict=False):
            assert (turn.approved is not None) == (call.role in made.checkers), (call.role, turn)

    def test_scenarios_have_names_of_their_own_and_those_that_agents_need(
        self, made: Program
    ) -> None:
        names = [scenario.name for scenario in made.scenarios]
        assert len(set(names)) == len(names), names
        missing = []
        for group in NEEDED:
            if not set(group) & set(names):
                missing.append(" or ".join(group))
        assert not missing, f"no scenario {', '.join(missing)}, which the contract of agents plays"

    def test_the_reference_gets_through_them_and_sees_no_gold(
        self, made: Program, recordings: list[Recording]
    ) -> None:
        fails = set()
        for scenario in made.scenarios:
            if any(map(_ends_the_rollout, scenario.replies)):
                fails.add(scenario.name)
        for recording in recordings:
            ended_well = recording.outcome == "ok"
            place = (recording.label, recording.outcome, recording.detail)
            assert ended_well == (recording.scenario not in fails), place
            assert not recording.leaks, (recording.label, recording.leaks)
            for call in recording.calls:
                assert parted(call.role)[0] in made.roles, recording.label

    def test_a_taught_call_is_the_reference_s_first(
        self, made: Program, recordings: list[Recording], tmp_path: Path
    ) -> None:
        if not made.taught_role:
            return
        assert made.taught_role in made.roles
        first_calls = {}
        for recording in recordings:
            if recording.play == "alone" and recording.calls:
                first_calls[recording.scenario] = recording.calls[0]
        assert first_calls
        for scenario in made.scenarios:
            folder = tmp_path / scenario.name
            folder.mkdir()
            _, problem = made.stage(scenario, folder)
            call = made.taught(problem, "answer")
            assert call is not None and "answer" in call.reply
            sent = first_calls[scenario.name]
            assert (call.role, list(call.messages)) == (sent.role, sent.messages), scenario.name

    def test_the_reference_does_the_same_when_all_are_played_at_once(
        self, recordings: list[Recording]
    ) -> None:
        differences = changed_together(recordings)
        assert not differences, "\n".join(map(str, differences))


def _ends_the_rollout(reply: Reply) -> bool:
    # The gateway waits for a limited rate (429), so such a scenario continues.
    return reply.status not in (200, 429) or reply.hang or bool(reply.drop)
