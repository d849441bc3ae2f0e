"""Scripted episodes of tool-calling agents in the environment `sql`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from random import Random
from typing import Any

from harness.contracts.programs import Scenario
from harness.mock_model.completion import Reply
from harness_sql.self_correcting import scenarios as sql

DATABASE, stage = sql.DATABASE, sql.stage
"""Database of the SQL scenarios."""
TOOL = "query_database"


def calling(*calls: tuple[str, str], text: str = "", id: str | None = None) -> Reply:
    """Return a reply with tool calls: name and raw arguments, each with its own id or `id`."""
    made = [
        {
            "id": id
            or f"call_{hashlib.sha256(f'{at} {name} {arguments}'.encode()).hexdigest()[:8]}",
            "type": "function",
        }
        | {"function": {"name": name, "arguments": arguments}}
        for at, (name, arguments) in enumerate(calls)
    ]
    return Reply(text, finish_reason="tool_calls", tool_calls=made)


def _query(*queries: str, text: str = "") -> Reply:
    return calling(
        *((TOOL, json.dumps({"sql": query}, ensure_ascii=False)) for query in queries), text=text
    )


def _scenario(
    name: str,
    shows: str,
    *replies: Reply,
    question: str = sql.QUESTION,
    options: Mapping[str, str] | None = None,
    **more: Any,
) -> Scenario:
    return Scenario(
        name, shows, replies, question, options={"environment": "sql", **(options or {})}, **more
    )


_COUNT = "SELECT count(*) FROM singer"
_DONE = Reply("There are 3 singers.")

SCENARIOS: tuple[Scenario, ...] = (
    _scenario("one_call", "one call, then the answer", _query(_COUNT), _DONE),
    _scenario("no_call", "answered at once", _DONE),
    _scenario("several_rounds", "one call a round", _query("SELECT 1"), _query(_COUNT), _DONE),
    _scenario(
        "six_rounds", "six rounds", *(_query(f"SELECT {n}") for n in range(6)), _DONE, max_turns=7
    ),
    _scenario(
        "two_calls", "two calls in one message, in order", _query("SELECT 'a'", "SELECT 'b'"), _DONE
    ),
    _scenario("text_and_call", "words beside a call", _query(_COUNT, text="Let me look."), _DONE),
    _scenario(
        "spelling",
        "arguments stay as the model wrote them",
        calling((TOOL, '{"sql":"SELECT \\u0027\\u00fc\\u0027"}'), (TOOL, ' {"sql" : "SELECT 1"}')),
        _DONE,
    ),
    _scenario(
        "mixed_calls",
        "good and bad calls in one message, in order",
        calling((TOOL, "[]"), ("look_up", "{}"), (TOOL, '{"sql": "SELECT 1"}'), (TOOL, "{")),
        _DONE,
    ),
    _scenario(
        "repeated_ids",
        "calls of one id, in one message and in the next",
        calling(
            (TOOL, '{"sql": "SELECT 1"}'),
            ("look_up", "{}"),
            (TOOL, '{"sql": "SELECT 1"}'),
            id="call_0",
        ),
        calling((TOOL, '{"sql": "SELECT 2"}'), id="call_0"),
        _DONE,
    ),
    _scenario(
        "deep_arguments",
        "arguments nested too deep",
        calling((TOOL, "[" * 2000 + "]" * 2000)),
        _DONE,
    ),
    _scenario(
        "tool_error", "the tool complains", _query("SELECT nme FROM singer"), _query(_COUNT), _DONE
    ),
    _scenario(
        "no_json", "arguments that are no JSON", calling((TOOL, '{"sql": ')), _query(_COUNT), _DONE
    ),
    _scenario(
        "no_object",
        "arguments that are no object",
        calling((TOOL, '"SELECT 1"')),
        _query(_COUNT),
        _DONE,
    ),
    _scenario(
        "misfit",
        "arguments that do not fit",
        calling((TOOL, '{"query": 1}')),
        _query(_COUNT),
        _DONE,
    ),
    _scenario(
        "unknown_tool",
        "a tool that is not there",
        calling(("look_up", '{"name": "Ana"}')),
        _query(_COUNT),
        _DONE,
    ),
    _scenario(
        "long_result",
        "a result cut to its limit",
        _query("SELECT *, title || title FROM concert"),
        _DONE,
    ),
    _scenario(
        "unicode",
        "umlauts, Chinese, emoji in arguments",
        _query('SELECT "Straße" FROM "Verkäufe" WHERE "金额" > 10'),
        Reply("Hauptstraße 👍"),
        question="Welche Straße hat Verkäufe über 10 €? 哪条街? 🎵",
    ),
    _scenario(
        "template_characters",
        "braces, percent signs, backslashes",
        _query("SELECT '{sql} {{x}} %s \\n ${y} <b>'"),
        Reply("{question} %d \\t ```"),
        question="What is {question} with 100 %s of {context.__class__} and C:\\new\\table?",
    ),
    _scenario(
        "white_space",
        "white space around the answer goes",
        _query(_COUNT),
        Reply("\n  3 \n"),
        question="  How  many?\n",
    ),
    _scenario(
        "call_after_the_limit",
        "called when no turn is left",
        *(_query(f"SELECT {n}") for n in range(4)),
        max_turns=2,
    ),
    _scenario(
        "no_tools",
        "there is no tool, and one is called all the same",
        _query(_COUNT),
        _DONE,
        options={"tool": ""},
    ),
    _scenario("empty_reply", "the model says nothing", Reply("")),
    _scenario("server_error", "500 after a call", _query(_COUNT), Reply.failure(500)),
    _scenario(
        "rate_limited",
        "429 to the first call, then answers",
        Reply.failure(429, retry_after="0"),
        _query(_COUNT),
        _DONE,
    ),
    _scenario("refused", "400 after a call", _query(_COUNT), Reply.failure(400, "invalid request")),
    _scenario("broken_connection", "the connection breaks", _query(_COUNT), Reply(drop="before")),
    _scenario(
        "timeout", "the model never answers", _query(_COUNT), Reply(hang=True), timeout_s=3.0
    ),
)


class Script:
    """Play a scenario's replies in order, for any caller."""

    def __init__(self, scenario: Scenario) -> None:
        self._left = list(scenario.replies)

    def __call__(self, request: object) -> Reply:
        return self._left.pop(0) if self._left else Reply.failure(500, "the scenario is over")


WRONG_ARGUMENTS = (
    "",
    "{",
    "[]",
    "null",
    '"SELECT 1"',
    "{}",
    '{"query": "SELECT 1"}',
    '{"sql": 1}',
    '{"sql": null}',
    '{"sql": "SELECT 1", "more": true}',
    ' {"sql" : "SELECT 1"} ',
    '{"sql": "SELECT \\u0027\\u00fc\\u0027"}',
)


def generate(random: Random, name: str) -> Scenario:
    """Return a random scenario: replies that call tools by a grammar, and an answer in words."""
    few = random.sample(sql.QUERIES, random.randint(1, 3))  # so that a query comes again
    rounds = random.randint(0, 5)
    replies = [_generated_round(random, few) for _ in range(rounds)]
    replies.append(
        Reply(random.choice(("There are 3.", "", "\n 3 \n", "I cannot.", "哪条街 🎵" * 50)))
    )
    question = random.choice(sql.GENERATED_QUESTIONS)
    return _scenario(name, "generated", *replies, question=question, max_turns=random.randint(1, 6))


def _generated_round(random: Random, queries: list[str]) -> Reply:
    if random.randrange(12) == 0:
        return Reply.failure(random.choice((400, 429, 500, 503)), retry_after="0")
    made: list[tuple[str, str]] = []
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        kind = random.randrange(10)
        if kind == 0:
            made.append((random.choice(("look_up", "", "query")), "{}"))
        elif kind <= 2:
            made.append((TOOL, random.choice(WRONG_ARGUMENTS)))
        else:
            query = random.choice(queries)
            made.append((TOOL, json.dumps({"sql": query}, ensure_ascii=random.random() < 0.5)))
    words = random.choice(("", "", "Let me look.", "Moment… 🎵"))
    repeated_id = "call_0" if random.randrange(10) == 0 else None
    return calling(*made, text=words, id=repeated_id)
