"""A judge behind real HTTP that reads what it is sent and grades by a rule of the test's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from harness.mock_model.server import ReceivedRequest, Reply
from harness.records import Attempt, Task, ToolCall, Verdict
from harness_sql.rewards.judge import CRITERIA, Judge

Rule = Callable[[Mapping[str, str]], float]


def data_of(request: ReceivedRequest) -> dict[str, str]:
    """What the judge is shown, read back from the request."""
    text = str(request.messages[-1]["content"])
    assert text.startswith("<data>\n") and text.endswith("\n</data>") and text.count("</data>") == 1
    data: dict[str, str] = json.loads(text.removeprefix("<data>\n").removesuffix("\n</data>"))
    return data


def grades(value: float, criteria: tuple[str, ...] = CRITERIA) -> str:
    return json.dumps(dict.fromkeys(criteria, value))


def grading(rule: Rule) -> Callable[[ReceivedRequest], Reply]:
    """A script that gives every criterion what the rule makes of the data."""
    return lambda request: Reply(grades(rule(data_of(request))))


def is_gold(data: Mapping[str, str]) -> float:
    return float(data["answer"].strip() == data.get("reference"))


def task(
    gold: str = "Paris", question: str = "What is the capital of France?", **data: Any
) -> Task:
    return Task("t", "words", "val", question, gold, "t", data=data)


def attempt(answer: str | None, ran: bool | None = None) -> Attempt:
    calls = (
        ()
        if ran is None
        else (ToolCall("query_database", {"sql": "SELECT 1"}, "1", ran, 0.0, 0.0),)
    )
    return Attempt("r", "a", "ok", "", answer, (), (), calls, 0.0, 0.0)


def judge(server: Any, **options: Any) -> Judge:
    return Judge(endpoint=server.base_url, model=server.model, **options)


def score(reward: Any, task: Task, *answers: str | None) -> list[Verdict]:
    """The verdicts on answers, asked for at once."""

    async def all_of_them() -> list[Verdict]:
        found: list[Verdict] = await asyncio.gather(
            *(reward.score(task, attempt(answer)) for answer in answers)
        )
        return found

    return asyncio.run(all_of_them())
