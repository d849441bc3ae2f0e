"""Schemas and pages of a server: what would hang the runner, or make it read files, is refused or bounded."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.contracts.environments import Observation
from harness.errors import EnvironmentFault
from harness_mcp_tools import connection
from harness_mcp_tools.connection import Connection
from harness_mcp_tools.servers import Server

SERVER = Path(__file__).with_name("schema_server.py")
NESTED = {"type": "object", "properties": {"text": {"type": "string", "pattern": "^(a+)+$"}}}


def server(**options: Any) -> Server:
    wanted = options.pop("wanted", [])
    arguments = [str(SERVER), json.dumps(options)]
    return Server(command=sys.executable, args=arguments, tools=wanted)


async def call(**options: Any) -> Observation:
    opened = Connection("odd", server(**options))
    await opened.open()
    try:
        return await opened.call("look", {}, 10.0, 1_000)
    finally:
        await opened.close()


async def open_and_close(**options: Any) -> list[str]:
    opened = Connection("odd", server(**options))
    await opened.open()
    await opened.close()
    return [tool.name for tool in opened.tools]


def test_a_result_is_held_against_a_nested_pattern_in_linear_time() -> None:
    """In a process of its own, which can be ended where this one would hang."""
    code = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from test_mcp_schemas import NESTED, call
from harness.errors import EnvironmentFault
try:
    asyncio.run(call(tool={"outputSchema": NESTED}, content={"text": "a" * 60 + "b"}))
except EnvironmentFault as fault:
    print(fault)
"""
    command = [sys.executable, "-c", code, str(SERVER.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "the structured content of look does not fit at text" in done.stdout, done.stderr


def test_a_result_that_fits_its_schema_is_shown() -> None:
    seen = asyncio.run(call(tool={"outputSchema": NESTED}, content={"text": "aaa"}))
    assert seen == Observation('{"text": "aaa"}')


@pytest.mark.parametrize("kind", ["inputSchema", "outputSchema"])
def test_a_pattern_that_is_not_linear_is_refused_when_tools_are_listed(kind: str) -> None:
    schema = {"type": "object", "properties": {"text": {"pattern": r"^(a|b)\1$"}}}
    expected = f"the {kind} of tool 'look' has the pattern .*linear time.*option `tools`"
    with pytest.raises(EnvironmentFault, match=expected):
        asyncio.run(open_and_close(tool={kind: schema}))


def test_a_tool_that_is_left_out_is_not_refused() -> None:
    schema = {"type": "object", "properties": {"text": {"pattern": "(?=a)"}}}
    found = asyncio.run(open_and_close(tool={"inputSchema": schema}, wanted=["other"]))
    assert found == []


@pytest.mark.parametrize("kind", ["inputSchema", "outputSchema"])
def test_a_file_that_a_schema_refers_to_is_not_read(kind: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"const": "a secret"}')
    schema = {"type": "object", "properties": {"text": {"$ref": secret.as_uri()}}}
    with pytest.raises(EnvironmentFault, match="never fetched") as refused:
        asyncio.run(open_and_close(tool={kind: schema}))
    assert secret.as_uri() in str(refused.value) and "a secret" not in str(refused.value)


def test_pages_of_tools_are_joined_and_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_PAGES", 3)
    assert asyncio.run(open_and_close(pages=3)) == ["look", "look2", "look3"]
    with pytest.raises(EnvironmentFault, match="in more than 3 pages"):
        asyncio.run(open_and_close(pages=0))


def test_all_pages_have_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page comes well within the deadline; all of them do not."""
    monkeypatch.setattr(connection, "START_S", 3.0)
    with pytest.raises(EnvironmentFault, match="did not list its tools within 3 s"):
        asyncio.run(open_and_close(pages=0, delay_s=0.5))


def test_answers_to_another_session_and_to_earlier_calls_reach_no_call() -> None:
    """The same holds for a later call, if the server guesses its number."""

    async def both() -> list[str]:
        opened = Connection("odd", server(content={"mine": 1}, strangers="of another session"))
        await opened.open()
        try:
            return [(await opened.call("look", {}, 10.0, 1_000)).text for _ in range(2)]
        finally:
            await opened.close()

    for text in asyncio.run(both()):
        assert "mine" in text and "another session" not in text
