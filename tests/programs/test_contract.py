"""The built-in programs keep the contract that other programs are held to."""

from __future__ import annotations

from harness.testing.contract import AgentContract
from harness.testing.program_contract import ProgramContract


class TestSelfCorrectingSQL(ProgramContract):
    program = "self_correcting_sql"


class TestToolLoop(ProgramContract):
    program = "tool_loop"


class TestReferenceTools(AgentContract):
    agent = "reference_tools"
