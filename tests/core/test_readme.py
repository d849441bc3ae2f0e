"""README keeps its promises: its commands exist, and its agent solves a question."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.gateway.server import GatewayServer
from harness.plugins import agent_spec, load, program
from harness.testing.stage import staged

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^ {4}(?:\.venv/bin/)?harness (\S[^#\n]*?) *(?:#.*)?$", README, re.MULTILINE)
FENCED_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAM = "self_correcting_sql"


def code() -> str:
    """Return the one block of Python in README."""
    (block,) = FENCED_PYTHON.findall(README)
    return str(block)


def test_readme_shows_commands() -> None:
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_and_their_options_exist(line: str) -> None:
    name, *arguments = shlex.split(line)
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, [name, "--help"])
    assert shown.exit_code == 0, f"README names no command of harness: {name}"
    options = set(re.findall(r"--[a-z][a-z-]*", shown.output))
    used = {argument for argument in arguments if argument.startswith("--")}
    assert used <= options


def test_the_agent_has_twelve_lines() -> None:
    assert len([line for line in code().splitlines() if line.strip()]) <= 12


def test_the_agent_answers_with_the_query_that_the_model_wrote(tmp_path: Path) -> None:
    file = tmp_path / "my_agent.py"
    file.write_text(code(), encoding="utf-8")
    spec = agent_spec(f"{file}:MyAgent")
    assert (spec.program, spec.strict) == (PROGRAM, False)
    agent = load(spec)()
    scenario = next(one for one in program(PROGRAM).scenarios if one.name == "right_first_time")

    async def solve() -> None:
        with GatewayServer() as gateway:
            async with staged(PROGRAM, scenario, gateway, tmp_path) as stage:
                attempt = await stage.attempt(agent, "readme", stage.request())
        assert attempt.outcome == "ok", attempt.detail
        assert attempt.answer and attempt.answer.upper().startswith("SELECT")
        assert [call.role for call in attempt.transitions] == ["write_query"]

    asyncio.run(solve())
