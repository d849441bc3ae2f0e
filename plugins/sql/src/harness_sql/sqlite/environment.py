"""The environment `sql`: one read-only SQLite database per task and a tool that queries it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from harness.contracts.environments import Environment, Observation, Tool, plain
from harness.errors import RolloutError
from harness.records import Task
from harness_sql.sqlite.lexer import order_counts
from harness_sql.sqlite.sandbox import Limits, execute, render

DATABASE = "database"
"""Key in a task's data for the path of its SQLite file."""
GOLD_IS = "gold_is"
"""Key in a task's data for the kind of its gold: `answer` (in words) or `query` (default)."""
ANSWER = "answer"
"""Key in a task's data for an answer in words, in addition to a gold query."""
TOOL = "tool"
"""Key in a task's data for the tool's name, by default `query_database`. Empty means no tool."""

_MAGIC = b"SQLite format 3\0"
_QUERY = re.compile(r"\W*(select|with|values)\b", re.IGNORECASE)
_COMPARED = Limits(timeout_s=10.0, max_rows=10_000, max_result_bytes=1 << 24)
"""Limits for queries that `meaning` executes to compare answers to the same question."""


def database_of(task: Task) -> str:
    """Return the SQLite file of a task of this environment."""
    return str(task.data[DATABASE])


def tool_of(task: Task) -> str:
    """Return the name of the tool that a task's agent gets, or an empty string if it gets none."""
    return str(task.data.get(TOOL, SQLEnvironment.tools[0].name))


class SQLEnvironment(Environment):
    """Run queries in the sandbox: read-only, with a deadline and limits on rows and characters."""

    tools = (
        Tool(
            "query_database",
            "Run one SQLite query on the database and read its result. Only reading is allowed.",
            {
                "type": "object",
                "properties": {"sql": {"type": "string", "description": "One SQLite query."}},
                "required": ["sql"],
                "additionalProperties": False,
            },
        ),
    )

    def payload(self, task: Task, limits: Mapping[str, object]) -> Mapping[str, Any]:
        named = {TOOL: tool_of(task)} if TOOL in task.data else {}
        return {DATABASE: database_of(task), "limits": dict(limits), **named}

    def tools_for(self, payload: Mapping[str, Any]) -> tuple[Tool, ...]:
        """Return the tool under the name that the task gives it, or no tool."""
        name = payload.get(TOOL, self.tools[0].name)
        return (replace(self.tools[0], name=name),) if name else ()

    def check(self, payload: Mapping[str, Any]) -> None:
        path = payload[DATABASE]
        try:
            with open(path, "rb") as file:
                found = file.read(len(_MAGIC))
        except OSError as error:
            raise RolloutError(
                f"no database at {path} ({error.strerror}): "
                "a runner on another machine needs it at that path"
            ) from error
        if found != _MAGIC:
            raise RolloutError(f"{path} is no SQLite database: it begins with {found!r}")

    async def call(
        self, payload: Mapping[str, Any], tool: str, arguments: Mapping[str, Any]
    ) -> Observation:
        asked = payload["limits"]
        limits = Limits(
            timeout_s=asked["timeout_s"],
            max_rows=asked["max_rows"],
            max_text_chars=asked["max_chars"],
        )
        result = await asyncio.to_thread(execute, payload[DATABASE], arguments["sql"], limits)
        return Observation(render(result, limits), result.ok)

    async def meaning(self, task: Task, answer: str) -> str | None:
        """Return the result of a query as text, with rows in order only if the query has ORDER BY.

        Return None for a query that fails, so that it gets no vote. Return an answer in words as it
        is, normalized.
        """
        if not _QUERY.match(answer):
            return plain(answer)
        result = await asyncio.to_thread(execute, database_of(task), answer, _COMPARED)
        if not result.ok:
            return None
        rows = [repr(list(map(_number, row))) for row in result.rows]
        # Without ORDER BY a database may give rows in any order, which is no other meaning.
        return "\n".join(rows if order_counts(answer) else sorted(rows))

    def gold_answer(self, task: Task) -> str | None:
        """Return the gold query; None for a task with a gold answer in words."""
        if task.data.get(GOLD_IS, "query") != "query":
            return None
        return task.gold.strip() or None


def _number(value: object) -> Any:
    """Return a whole float such as 1.0 as an integer, because the two are equal."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
