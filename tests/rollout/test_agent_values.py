"""Whatever values an agent passes or reports, its attempt is recorded and judged."""

from __future__ import annotations

import asyncio
import datetime
import types
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import pytest

from harness.contracts.environments import Tool
from harness.contracts.toolbox import Agent, Toolbox
from harness.gateway.client import GatewayControl
from harness.gateway.server import GatewayServer
from harness.records import Attempt, Problem
from harness.rollout.json_values import parsed
from harness.testing.fixtures import StartServer
from harness_agentlightning_queue.spans import from_spans, to_spans
from harness_sql.self_correcting.prompts import APPROVED
from harness_sql.self_correcting.reference import ReferenceSQL

from .test_attempts import WRITE, attempt, sql_request

Play = Callable[[Agent], Any]


@pytest.fixture
def play(
    control: GatewayControl, gateway: GatewayServer, scripted_server: StartServer, tmp_path: Any
) -> Play:
    """Have an agent make an attempt, in which its first query is approved."""

    async def played(agent: Agent) -> Attempt:
        server = scripted_server([WRITE, f"Fine. {APPROVED}"])
        result = await attempt(control, gateway, server, agent, sql_request(tmp_path))
        assert from_spans(to_spans(result)) == result  # as the queue stores it
        return result

    return played


class Level(IntEnum):
    HIGH = 3


def circle() -> dict[str, object]:
    """Return arguments that contain themselves."""
    arguments: dict[str, object] = {}
    arguments["again"] = arguments
    return arguments


@pytest.mark.parametrize(
    ("given", "recorded", "wrong"),
    [
        ({"sql": b"x", "limit": 3}, {"sql": "<bytes>", "limit": 3}, "'sql' is of type bytes"),
        ({"sql": {1}}, {"sql": "<set>"}, "'sql' is of type set"),
        ({"when": datetime.date(2020, 1, 1)}, {"when": "<date>"}, "'when' is of type date"),
        ({"one": {"two": ["a", object()]}}, {"one": "<dict>"}, "'one.two.1' is of type object"),
        ({"number": 10**5000}, {"number": "<int>"}, "'number' is an integer with too many digits"),
        (circle(), {"again": "<dict>"}, "nested more than 100 levels deep"),
        ('{"sql": ' + "[" * 400 + "]" * 400 + "}", {"sql": "<list>"}, "nested more than 100"),
    ],
)
def test_arguments_that_json_cannot_hold_are_named(
    given: Any, recorded: dict[str, object], wrong: str
) -> None:
    found, reason = parsed(given)
    assert found == recorded
    assert reason.startswith("cannot be sent as JSON: ") and wrong in reason


def test_plain_arguments_are_passed_as_they_are() -> None:
    plain = {"text": "é", "number": 1.5, "none": None, "flag": True, "all": [1, {"a": []}]}
    assert parsed(plain) == (plain, "")
    found, wrong = parsed({"level": Level.HIGH, "pair": (1, 2), "view": types.MappingProxyType({})})
    assert (found, wrong) == ({"level": 3, "pair": [1, 2], "view": {}}, "")
    assert type(found["level"]) is int


class PassesBytes(ReferenceSQL):
    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        answer = await super().solve(problem, toolbox)
        unfit: Any = {"sql": b"SELECT 1"}
        self.seen = await toolbox.call(toolbox.tools[0].name, unfit)
        return answer


async def test_a_call_with_bytes_is_shown_to_the_agent_and_recorded(play: Play) -> None:
    agent = PassesBytes()
    result = await play(agent)
    assert (result.outcome, result.answer) == ("ok", "SELECT name FROM singer")
    last = result.tool_calls[-1]
    assert (last.fault, last.ok, last.text) == ("bad_arguments", False, agent.seen)
    expected = "The arguments of query_database cannot be sent as JSON: 'sql' is of type bytes."
    assert agent.seen == expected


class ChangesWhatItWasGiven(ReferenceSQL):
    """Has a tool of its own, which changes its arguments."""

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        async def keep(arguments: Any) -> str:
            arguments["text"] = {1}
            return "kept"

        tool = Tool("keep", "Keep.", {"type": "object"})
        await toolbox.part([tool], {"keep": keep}).call("keep", {"text": "a"})
        return await super().solve(problem, toolbox)


async def test_a_tool_of_the_agent_does_not_change_the_record(play: Play) -> None:
    result = await play(ChangesWhatItWasGiven())
    assert result.outcome == "ok"
    assert result.tool_calls[0].arguments == {"text": "a"}


class Reports(ReferenceSQL):
    """Puts values into its report, or another object in the place of the report."""

    def __init__(self, **values: object) -> None:
        super().__init__()
        self.values = values

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        answer = await super().solve(problem, toolbox)
        holder: Any = toolbox if "report" in self.values else toolbox.report
        for name, value in self.values.items():
            setattr(holder, name, value)
        return answer


@pytest.mark.parametrize(
    ("values", "detail"),
    [
        ({"reward": {1}}, "toolbox.report.reward is of type set: set a finite number"),
        ({"reward": "x"}, "toolbox.report.reward is of type str"),
        ({"reward": float("nan")}, "toolbox.report.reward is not finite"),
        ({"reward": 10**400}, "toolbox.report.reward is not finite"),
        ({"roles": None}, "toolbox.report.roles is of type NoneType: set a dict"),
        ({"roles": {"id": {2}}}, "toolbox.report.roles has a value that is of type set"),
        ({"report": None}, "toolbox.report is of type NoneType: set its attributes"),
    ],
)
async def test_a_report_with_other_values_is_the_agents_error(
    play: Play, values: dict[str, object], detail: str
) -> None:
    result = await play(Reports(**values))
    assert (result.outcome, result.answer, result.reported) == ("agent_error", None, None)
    assert detail in result.detail


@pytest.mark.parametrize("reward", [None, 0.5, 1, True])
async def test_a_plain_report_is_kept(play: Play, reward: float | None) -> None:
    result = await play(Reports(reward=reward, roles={"unknown": "write_query", 1: "no id"}))
    assert (result.outcome, result.reported) == ("ok", reward)
    assert type(result.reported) is type(reward)


class ChangesItsPayload(ReferenceSQL):
    """Raises its own limits and chooses another database."""

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        answer = await super().solve(problem, toolbox)
        reached: Any = toolbox
        for payload in (reached.payload, reached.request.payload):
            payload["limits"].update(max_rows=40, max_chars=100_000)
            payload["database"] = "/no/such/database"
        await toolbox.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30) "
            "SELECT i, (SELECT name FROM singer) FROM n"
        )
        return answer


async def test_an_agent_cannot_change_its_limits_or_its_database(play: Play) -> None:
    result = await play(ChangesItsPayload())
    last = result.tool_calls[-1]
    assert last.ok and "Ella" in last.text
    assert last.text.count("Ella") == 5  # max_rows of the request


class Sets(ReferenceSQL):
    """Sets an attribute of its toolbox, by which the host would judge its attempt."""

    def __init__(self, name: str, value: object) -> None:
        super().__init__()
        self.name, self.value = name, value

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        answer = await super().solve(problem, toolbox)
        setattr(toolbox, self.name, self.value)
        return answer


@pytest.mark.parametrize(
    ("name", "value"), [("fault", "the server went away"), ("fault", ""), ("state", {"right": 1})]
)
async def test_an_agent_cannot_leave_its_attempt_unscored(
    play: Play, name: str, value: object
) -> None:
    result = await play(Sets(name, value))
    assert result.outcome == "agent_error" and f"'{name}'" in result.detail
    assert result.state is None


async def test_an_answer_late_with_a_wrong_report_stays_late(
    control: GatewayControl, gateway: GatewayServer, scripted_server: StartServer, tmp_path: Any
) -> None:
    class Hangs(ReferenceSQL):
        async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
            toolbox.report.roles = None  # type: ignore[assignment]
            await asyncio.sleep(60)
            return ""

    request = sql_request(tmp_path, timeout_s=0.5)
    result = await attempt(control, gateway, scripted_server([]), Hangs(), request)
    assert result.outcome == "timeout"
