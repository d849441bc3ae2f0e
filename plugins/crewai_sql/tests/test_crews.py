"""Crews in runners: no database that processes share, and no summary of a long prompt."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness_crewai_sql import quiet  # noqa: F401  isort: skip  (first, it keeps telemetry off)
from crewai.utilities import agent_utils

from harness.gateway.server import GatewayServer
from harness.mock_model.server import ReceivedRequest, Reply
from harness.plugins import agent_spec, load, program
from harness.records import Attempt
from harness.testing.stage import staged

PROGRAM = "self_correcting_sql"


@pytest.fixture
def gateway() -> Iterator[GatewayServer]:
    with GatewayServer() as server:
        yield server


def played(gateway: GatewayServer, folder: Path, reply: Reply) -> Attempt:
    """Return an attempt of the crews at which the model gives one reply to every call."""
    scenario = next(one for one in program(PROGRAM).scenarios if one.name == "refused")

    def script(call: ReceivedRequest) -> Reply:
        return reply

    async def play() -> Attempt:
        async with staged(PROGRAM, scenario, gateway, folder, script) as stage:
            agent = load(agent_spec("crewai_sql_idiomatic"))()
            return await stage.attempt(agent, "one", stage.request())

    return asyncio.run(play())


def test_no_database_of_the_user_is_opened(
    gateway: GatewayServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All runners of a machine would wait for its lock."""
    home = tmp_path / "home"
    monkeypatch.setenv("XDG_DATA_HOME", str(home))
    attempt = played(gateway, tmp_path, Reply("```sql\nSELECT 1\n```"))
    assert attempt.outcome == "ok" and len(attempt.transitions) > 1
    assert not [path for path in home.rglob("*") if path.is_file()]


def test_a_prompt_that_is_too_long_is_not_summarized(
    gateway: GatewayServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CrewAI would do so in another event loop, with this one's connections, and block this one."""
    summaries = []
    monkeypatch.setattr(agent_utils, "summarize_messages", lambda **call: summaries.append(call))
    too_long = Reply.failure(400, "This model's maximum context length is 4096 tokens.")
    attempt = played(gateway, tmp_path, too_long)
    assert attempt.outcome == "prompt_too_long" and not summaries
