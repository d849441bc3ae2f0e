"""Scripted episodes in which every agent must behave exactly as the reference does."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from random import Random
from typing import Any

from harness.contracts.programs import CANARY, Scenario
from harness.mock_model.completion import Reply
from harness.records import Problem, Task
from harness_sql.self_correcting.prompts import APPROVED, PROMPTS, REJECTED
from harness_sql.sqlite.environment import DATABASE as DATABASE_KEY
from harness_sql.sqlite.environment import TOOL
from harness_sql.sqlite.schema import schema_text

DATABASE = """
CREATE TABLE singer (singer_id INTEGER PRIMARY KEY, name TEXT, country TEXT, age INTEGER);
CREATE TABLE concert (concert_id INTEGER PRIMARY KEY, singer_id INT REFERENCES singer, title TEXT, year INT);
CREATE TABLE "Verkäufe" ("Straße" TEXT, "金额" REAL);
INSERT INTO singer VALUES (1, 'Ana', 'Chile', 31), (2, 'Bo', 'China', 27), (3, 'Cléo', 'France', 45);
INSERT INTO "Verkäufe" VALUES ('Hauptstraße', 12.5), ('Königsallee', 7.0);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60)
INSERT INTO concert SELECT i, i % 3 + 1, 'A long evening of songs, no. ' || i || ' of sixty', 1960 + i FROM n;
"""


QUESTION = "How many singers are there?"


def _scenario(
    name: str, shows: str, replies: tuple[Reply, ...], question: str = QUESTION, **more: Any
) -> Scenario:
    return Scenario(name, shows, replies, question, **more)


def _sql(query: str, before: str = "", after: str = "") -> Reply:
    return Reply(f"{before}```sql\n{query}\n```{after}")


_COUNT = "SELECT count(*) FROM singer"
_YES = Reply(f"The query counts the singers.\n{APPROVED}")
_NO = Reply(f"The query counts the wrong thing.\n{REJECTED}")

SCENARIOS: tuple[Scenario, ...] = (
    _scenario("right_first_time", "approved at once", (_sql(_COUNT), _YES)),
    _scenario(
        "wrong_then_fixed",
        "rewritten once",
        (_sql("SELECT count(*) FROM concert"), _NO, _sql(_COUNT), _YES),
    ),
    _scenario(
        "sql_error",
        "the database complains",
        (_sql("SELECT nme FROM singer"), _NO, _sql(_COUNT), _YES),
    ),
    _scenario(
        "empty_result",
        "a query without rows",
        (_sql("SELECT name FROM singer WHERE age > 99"), _NO, _sql(_COUNT), _YES),
    ),
    _scenario(
        "wrongly_approved", "the checker is wrong", (_sql("SELECT count(*) FROM concert"), _YES)
    ),
    _scenario(
        "never_approved",
        "max_turns ends it",
        (_sql("SELECT 1"), _NO, _sql("SELECT 2"), _NO, _sql("SELECT 3"), _YES),
    ),
    _scenario(
        "many_turns",
        "approved in the sixth turn",
        (*(reply for n in range(5) for reply in (_sql(f"SELECT {n}"), _NO)), _sql(_COUNT), _YES),
        max_turns=7,
    ),
    _scenario("single_turn", "nothing is checked", (_sql(_COUNT),), max_turns=1),
    _scenario("no_fence", "a query without a code fence", (Reply(f"  {_COUNT};\n"), _YES)),
    _scenario(
        "several_fences",
        "the last block counts",
        (_sql("SELECT 1", "First idea:\n", f"\nBetter:\n```sqlite\n{_COUNT}\n```\nDone."), _YES),
    ),
    _scenario(
        "both_verdicts",
        "the last verdict counts",
        (_sql(_COUNT), Reply(f"{APPROVED}\nNo:\n{REJECTED}"), _sql(_COUNT), _YES),
    ),
    _scenario(
        "no_verdict", "silence is no approval", (_sql(_COUNT), Reply("Hm."), _sql(_COUNT), _YES)
    ),
    _scenario(
        "unicode",
        "umlauts, Chinese, emoji",
        (
            _sql('SELECT "Straße" FROM "Verkäufe" WHERE "金额" > 10'),
            Reply(f"C’est bon 👍\n{APPROVED}"),
        ),
        question="Welche Straße hat Verkäufe über 10 €? 哪条街? 🎵",
    ),
    _scenario(
        "template_characters",
        "braces, percent signs, backslashes",
        (
            _sql("SELECT '{sql} {{x}} %s \\n ${y} <b>'"),
            Reply(f"{{remarks}} %d \\t ```\n{REJECTED}"),
            _sql(_COUNT),
            _YES,
        ),
        question="What is {question} with 100 %s of {schema.__class__} and C:\\new\\table?",
    ),
    _scenario(
        "white_space",
        "white space around replies is kept in remarks",
        (
            Reply(f"\n\n ```sql\n\n  {_COUNT}  \n\n```\n "),
            Reply(f"\n  Odd.  \n\n{REJECTED}\n \n"),
            _sql(_COUNT),
            _YES,
        ),
        question="  How many   singers\tare there?\n",
    ),
    _scenario(
        "long_schema",
        "a schema cut to its limit",
        (_sql(_COUNT), _YES),
        options={"schema_chars": 160},
    ),
    _scenario(
        "long_result",
        "a result cut to its limit",
        (_sql("SELECT *, title || title || title FROM concert"), _NO, _sql(_COUNT), _YES),
    ),
    _scenario(
        "truncated_reply",
        "cut off by max_tokens",
        (Reply(f"```sql\n{_COUNT}", finish_reason="length"), _YES),
    ),
    _scenario("empty_reply", "the model says nothing", (Reply(""), _NO, _sql(_COUNT), _YES)),
    _scenario(
        "empty_check", "the checker says nothing", (_sql(_COUNT), Reply(""), _sql(_COUNT), _YES)
    ),
    _scenario("server_error", "500 to the check", (_sql(_COUNT), Reply.failure(500))),
    _scenario(
        "rate_limited",
        "429 to the first call, then answers",
        (Reply.failure(429, retry_after="0"), _sql(_COUNT), _YES),
    ),
    _scenario(
        "refused", "400 to the rewrite", (_sql(_COUNT), _NO, Reply.failure(400, "invalid request"))
    ),
    _scenario("broken_connection", "the connection breaks", (_sql(_COUNT), Reply(drop="before"))),
    _scenario(
        "timeout", "the model never answers", (_sql(_COUNT), _NO, Reply(hang=True)), timeout_s=3.0
    ),
)


def build_database(folder: Path) -> Path:
    """Write the scenarios' database."""
    path = folder / "parity.sqlite"
    connection = sqlite3.connect(path)
    try:
        connection.executescript(DATABASE)
    finally:
        connection.close()
    return path


def stage(scenario: Scenario, folder: Path) -> tuple[Task, Problem]:
    """Return the scenario's task and problem, on the scenarios' database."""
    path = folder / "parity.sqlite"
    if not path.exists():
        build_database(folder)
    # All scenarios share one id, as a task's sessions do: state that an agent keeps by task must
    # not mix rollouts.
    data = {
        DATABASE_KEY: str(path),
        **({TOOL: scenario.options[TOOL]} if TOOL in scenario.options else {}),
    }
    task = Task(
        "parity", "parity", "val", scenario.question, f"SELECT '{CANARY}'", "parity", data=data
    )
    schema = schema_text(path, limit_chars=scenario.options.get("schema_chars", 4000))
    return task, Problem(task.id, task.question, {"schema": schema})


class Script:
    """Play a scenario's replies in order, for any caller.

    An agent with tools gets each written query as a call of its tool for queries, and the last one
    as text.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._replies = list(scenario.replies)
        self._last = ""
        self._called = False
        """Whether the last reply was a call, so that the next request has its result."""

    def __call__(self, request: Any) -> Reply:
        tools = request.body.get("tools")
        if not tools:
            return (
                self._replies.pop(0)
                if self._replies
                else Reply.failure(500, "the scenario is over")
            )
        # Not by the role of the last message: some frameworks send results as the user's.
        if self._called and self._replies:
            check = self._replies.pop(0)
            if check.status != 200 or check.hang or check.drop:
                return check
            self._called = False
            if check.text.rfind(APPROVED) > check.text.rfind(REJECTED):
                return Reply(f"```sql\n{self._last}\n```")
        if not self._replies:
            return Reply(f"```sql\n{self._last}\n```")
        draft = self._replies.pop(0)
        if draft.status != 200 or draft.hang or draft.drop or not self._replies:
            return draft
        return self._tool_call(draft, _tool_for_queries(tools))

    def _tool_call(self, draft: Reply, tool: dict[str, Any]) -> Reply:
        self._last = PROMPTS.parse_sql(draft.text)
        self._called = True
        name = next(iter(tool["parameters"]["properties"]))
        function = {"name": tool["name"], "arguments": json.dumps({name: self._last})}
        call = {"id": f"call_{len(self._replies)}", "type": "function", "function": function}
        return Reply("", finish_reason="tool_calls", tool_calls=[call])


def _tool_for_queries(tools: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the tool that takes `sql`, else the first: some frameworks put their own before it."""
    functions = [tool["function"] for tool in tools]
    takes_sql = [one for one in functions if "sql" in one["parameters"].get("properties", {})]
    return next(iter(takes_sql), functions[0])


QUERIES = (
    _COUNT,
    "SELECT count(*) FROM concert",
    "SELECT 1",
    "SELECT 0",
    "SELECT NULL",
    "SELECT ''",
    "SELECT sum(age) FROM singer WHERE age > 99",
    "SELECT name FROM singer WHERE age > 99",
    "SELECT nme FROM singer",
    "SELECT FROM WHERE",
    "SELECT *, title || title || title FROM concert",
    'SELECT "Straße" FROM "Verkäufe" WHERE "金额" > 10',
    "SELECT '🎵 {x} %s \\n ```'",
    "DELETE FROM singer",
    "",
)
"""Queries of generated scenarios: right, empty, `0`, NULL, wrong, long, unicode, refused."""
GENERATED_QUESTIONS = (QUESTION, "Welche Straße? 哪条街? 🎵", "What is {question} with 100 %s?", "")


def generate(random: Random, name: str) -> Scenario:
    """Return a random scenario: drafts and checks by a grammar, with occasional other replies."""
    turns = random.randint(1, 5)
    few = random.sample(QUERIES, random.randint(1, 3))  # so that a query comes again, as in A, B, A
    replies: list[Reply] = []
    for _ in range(turns):
        replies += [_generated_draft(random, few), _generated_check(random)]
    return _scenario(
        name,
        "generated",
        tuple(replies),
        random.choice(GENERATED_QUESTIONS),
        max_turns=random.randint(1, turns),
    )


def _generated_draft(random: Random, queries: list[str]) -> Reply:
    query = random.choice(queries)
    kind = random.randrange(16)
    if kind == 0:
        return Reply(random.choice(("", " \n", "I cannot help with that.", "```sql", "```")))
    if kind == 1:
        return Reply(f"```sql\n{query[: len(query) // 2]}", finish_reason="length")
    if kind == 2:
        return Reply(query)
    if kind == 3:
        return _sql(
            random.choice(queries), "First:\n", f"\nBetter:\n```sqlite\n{query}\n```\nDone."
        )
    if kind == 4:
        return _sql(query, "  Gern! 🎵\n" * random.randint(1, 40))
    if kind == 5:
        return _generated_failure(random)
    return _sql(query)


def _generated_check(random: Random) -> Reply:
    kind = random.randrange(12)
    remark = random.choice(("Fine.", "Hm, 哪?", "", "{remarks} %d \\t", "long " * 300))
    if kind == 0:
        return Reply(random.choice(("", "Hm.", "I cannot judge that.", APPROVED.lower())))
    if kind == 1:
        return Reply(f"{APPROVED}\n{remark}\n{REJECTED}")
    if kind == 2:
        return Reply(f"{REJECTED}\n{remark}\n{APPROVED}\n ")
    if kind == 3:
        return Reply(f"{remark}\n{APPROVED[:10]}", finish_reason="length")
    if kind == 4:
        return _generated_failure(random)
    return Reply(f"{remark}\n{APPROVED if kind < 8 else REJECTED}")


def _generated_failure(random: Random) -> Reply:
    status = random.choice((400, 429, 500, 503))
    return Reply.failure(status, retry_after="0")
