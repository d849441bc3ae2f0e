"""The scripted episodes of dialogues, played in the environment `sql`, with scripted users."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from harness.contracts.programs import Scenario
from harness.mock_model.completion import Reply
from harness.records import Problem, Task
from harness_dialogues.prompts import OPENING, STOP
from harness_sql.self_correcting import scenarios as sql
from harness_sql.tool_loop.scenarios import TOOL, Script, calling

__all__ = ["DATABASE", "PRIVATE", "SCENARIOS", "Script", "stage"]

DATABASE = sql.DATABASE
PRIVATE = "You plan a festival in the valley of Oberau, and tell nobody."
"""Part of every scenario's user instructions; no request of an agent may contain it."""


def stage(scenario: Scenario, folder: Path) -> tuple[Task, Problem]:
    """Return a task as for agents of SQL, with the question as the user's instructions."""
    task, problem = sql.stage(scenario, folder)
    opening = {name: scenario.options[name] for name in (OPENING,) if name in scenario.options}
    return task, replace(problem, context={**problem.context, **opening})


def _query(*queries: str, text: str = "") -> Reply:
    return calling(
        *((TOOL, json.dumps({"sql": query}, ensure_ascii=False)) for query in queries), text=text
    )


def _scenario(
    name: str,
    shows: str,
    *replies: Reply,
    question: str = f"Ask how many singers there are. {PRIVATE}",
    options: Mapping[str, str] | None = None,
    max_turns: int = 3,
    timeout_s: float = 60.0,
) -> Scenario:
    return Scenario(
        name,
        shows,
        replies,
        question,
        max_turns,
        timeout_s,
        {"environment": "sql", **(options or {})},
    )


# With a number instead of `count(*)`, the contract of agents distinguishes rollouts.
_HELLO = Reply("How many of them are singer number count(*)?")
_MORE = Reply("And how many concerts?")
_STOP = Reply(STOP)
_COUNT = _query("SELECT count(*) FROM singer")
_CONCERTS = _query("SELECT count(*) FROM concert")
_THREE, _TWO = Reply("There are 3."), Reply("There are 2.")
_OPENING = {OPENING: "How many singers are there?"}


def _bad(name: str, shows: str, call: Reply) -> Scenario:
    """Return a refused call, an accepted one, and a further turn with all of it in the history."""
    return _scenario(name, shows, _HELLO, call, _COUNT, _THREE, _MORE, _CONCERTS, _TWO, _STOP)


SCENARIOS: tuple[Scenario, ...] = (
    _scenario("ends_at_once", "the user ends before the agent has said a word", _STOP),
    _scenario("says_nothing", "the user says nothing", Reply("\n")),
    _scenario("no_call", "answered at once", _HELLO, _THREE, _STOP),
    _scenario(
        "one_call", "one call, then the answer", _HELLO, _COUNT, _THREE, Reply(f"Thank you. {STOP}")
    ),
    _scenario(
        "several_rounds",
        "one call a round, and the user goes on",
        *(_HELLO, _query("SELECT 1"), _COUNT, _THREE, _MORE, _CONCERTS, _TWO, _STOP),
    ),
    _scenario(
        "four_turns",
        "calls in some turns",
        *(
            _HELLO,
            _COUNT,
            _THREE,
            _MORE,
            _TWO,
            Reply("Really?"),
            _CONCERTS,
            _COUNT,
            _TWO,
            Reply("Good."),
            _TWO,
            _STOP,
        ),
        max_turns=5,
    ),
    _scenario(
        "opening",
        "the user's first words stand in the task",
        *(_COUNT, _THREE, _MORE, _CONCERTS, _TWO, _STOP),
        options=_OPENING,
    ),
    _scenario(
        "turns_are_over",
        "the user would go on",
        _HELLO,
        _THREE,
        _MORE,
        _CONCERTS,
        _TWO,
        max_turns=2,
    ),
    _scenario(
        "call_after_the_limit",
        "called when no more calls are followed",
        *(_HELLO, _query("SELECT 0"), _query("SELECT 1"), _query("SELECT 2", text="Once more.")),
        max_turns=2,
    ),
    _scenario(
        "call_after_the_limit_later",
        "the same in the second turn",
        *(
            _HELLO,
            _COUNT,
            _THREE,
            _MORE,
            _query("SELECT 0"),
            _query("SELECT 1"),
            _query("SELECT 2"),
        ),
        max_turns=2,
    ),
    _scenario(
        "calls_up_to_the_limit",
        "as many calls as are followed, in both turns",
        *(_HELLO, _query("SELECT 0"), _COUNT, _THREE, _MORE, _query("SELECT 1"), _CONCERTS, _TWO),
        max_turns=2,
    ),
    _scenario(
        "two_calls",
        "two calls in one message, in order",
        *(
            _HELLO,
            _query("SELECT 'a'", "SELECT 'b'"),
            _THREE,
            _MORE,
            _query("SELECT 'c'", "SELECT 'd'"),
            _TWO,
            _STOP,
        ),
    ),
    _scenario(
        "text_and_call",
        "words beside a call",
        _HELLO,
        _query("SELECT 1", text="Wait."),
        _THREE,
        _STOP,
    ),
    _bad(
        "spelling",
        "arguments stay as the model wrote them",
        calling((TOOL, '{"sql":"SELECT \\u0027\\u00fc\\u0027"}'), (TOOL, ' {"sql" : "SELECT 1"}')),
    ),
    _bad(
        "mixed_calls",
        "good and bad calls in one message, in order",
        calling((TOOL, "[]"), ("look_up", "{}"), (TOOL, '{"sql": "SELECT 1"}'), (TOOL, "{")),
    ),
    _scenario(
        "repeated_ids",
        "calls of one id, in one turn and in the next",
        _HELLO,
        calling(
            (TOOL, '{"sql": "SELECT 1"}'),
            ("look_up", "{}"),
            (TOOL, '{"sql": "SELECT 1"}'),
            id="call_0",
        ),
        calling((TOOL, '{"sql": "SELECT 2"}'), id="call_0"),
        *(_THREE, _MORE, calling((TOOL, '{"sql": "SELECT 3"}'), id="call_0"), _TWO, _STOP),
    ),
    _bad("deep_arguments", "arguments nested too deep", calling((TOOL, "[" * 2000 + "]" * 2000))),
    _bad("tool_error", "the tool complains", _query("SELECT nme FROM singer")),
    _bad("no_json", "arguments that are no JSON", calling((TOOL, '{"sql": '))),
    _bad("no_object", "arguments that are no object", calling((TOOL, '"SELECT 1"'))),
    _bad("misfit", "arguments that do not fit", calling((TOOL, '{"query": 1}'))),
    _bad("unknown_tool", "a tool that is not there", calling(("look_up", '{"name": "Ana"}'))),
    _bad(
        "long_result", "a result cut to its limit", _query("SELECT *, title || title FROM concert")
    ),
    _scenario(
        "unicode",
        "umlauts, Chinese, emoji on both sides",
        Reply("Welche Straße hat Verkäufe über 10 €? 哪条街? 🎵"),
        _query('SELECT "Straße" FROM "Verkäufe" WHERE "金额" > 10'),
        *(Reply("Hauptstraße 👍"), Reply("谢谢"), Reply("不客气"), _STOP),
    ),
    _scenario(
        "template_characters",
        "braces, percent signs, backslashes",
        Reply("What is {text} with 100 %s of {context.__class__} and C:\\new\\table?"),
        _query("SELECT '{sql} {{x}} %s \\n ${y} <b>'"),
        *(Reply("{question} %d \\t ```"), _MORE, _TWO, _STOP),
        question="Ask for {stop} and {instructions}, 100 %s.",
    ),
    _scenario(
        "white_space",
        "white space around what is said: the agent's own history keeps it",
        *(
            Reply("\n How  many? \n"),
            _COUNT,
            Reply("\n  3 \n"),
            Reply(" Sure?\n"),
            Reply(" Yes.\t"),
            _STOP,
        ),
    ),
    _scenario(
        "agent_says_stop",
        "only the user ends",
        _HELLO,
        Reply(f"Write {STOP} to end."),
        _MORE,
        Reply(STOP),
        _STOP,
    ),
    _scenario(
        "no_tools",
        "there is no tool, and one is called all the same",
        *(_HELLO, _COUNT, _THREE, _MORE, _TWO, _STOP),
        options={"tool": ""},
    ),
    _scenario("empty_reply", "the agent says nothing", _HELLO, Reply("")),
    _scenario(
        "empty_reply_later",
        "nothing in its second turn",
        _HELLO,
        _COUNT,
        _THREE,
        _MORE,
        _CONCERTS,
        Reply(" "),
    ),
    _scenario("server_error", "500 after a call", _COUNT, Reply.failure(500), options=_OPENING),
    _scenario(
        "server_error_later",
        "500 in the second turn",
        _HELLO,
        _THREE,
        _MORE,
        _CONCERTS,
        Reply.failure(500),
    ),
    _scenario(
        "user_fails", "500 to the user's second call", _HELLO, _COUNT, _THREE, Reply.failure(500)
    ),
    _scenario(
        "rate_limited",
        "429 to the agent's first call, then answers",
        *(Reply.failure(429, retry_after="0"), _COUNT, _THREE, _STOP),
        options=_OPENING,
    ),
    _scenario("refused", "400 after a call", _HELLO, _COUNT, Reply.failure(400, "invalid request")),
    _scenario("broken_connection", "the connection breaks", _HELLO, _COUNT, Reply(drop="before")),
    _scenario(
        "timeout",
        "the model never answers",
        _COUNT,
        Reply(hang=True),
        timeout_s=3.0,
        options=_OPENING,
    ),
)
