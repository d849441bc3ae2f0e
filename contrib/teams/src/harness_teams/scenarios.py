"""The scripted episodes of teams, played over two databases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness import CANARY, Problem, Reply, Scenario, Task
from harness.mock_model.server import ReceivedRequest
from harness_sql.sqlite.environment import GOLD_IS
from harness_sql.tasks.bundled import build_database
from harness_sql.tool_loop.scenarios import calling
from harness_teams.environment import DATABASES
from harness_teams.prompts import CRITIC, PLANNER

DATABASE = {
    "a": "CREATE TABLE singer (id INTEGER PRIMARY KEY, name TEXT, city TEXT);\n"
    "INSERT INTO singer VALUES (1, 'Ana', 'Rome'), (2, 'Bo', 'Rome'), (3, 'Cy', 'Bonn');\n",
    "b": "CREATE TABLE concert (id INTEGER PRIMARY KEY, singer_id INTEGER, fee INTEGER);\n"
    "INSERT INTO concert VALUES (1, 1, 20), (2, 2, 30), (3, 3, 70), (4, 1, 5);\n",
}
QUESTION = "What do the concerts of singers from Rome cost together?"
ANSWER = Reply("They cost 55.")
RIGHT = Reply("CORRECT")
WRONG = Reply("WRONG: ask for the fees of both singers.")


def _hand(*tasks: tuple[str, str], text: str = "") -> Reply:
    """Return a planner's reply that hands tasks over to `a` or `b`."""
    return calling(
        *((f"transfer_to_worker_{to}", json.dumps({"task": task})) for to, task in tasks), text=text
    )


def _query(database: str, *queries: str) -> Reply:
    return calling(*((f"query_{database}", json.dumps({"sql": sql})) for sql in queries))


Part = tuple[str, Reply | tuple[Reply, ...]]
"""A speaker with its reply: `planner`, `critic`, or a worker, identified by its task."""
_IDS, _FEES = (
    "Which ids have singers from Rome?",
    "What do concerts of singers 1 and 2 cost together?",
)
_ASK_IDS, _ASK_FEES = ("a", _IDS), ("b", _FEES)
_A = (_IDS, (_query("a", "SELECT id FROM singer WHERE city = 'Rome'"), Reply("Ids 1 and 2.")))
_B = (
    _FEES,
    (_query("b", "SELECT sum(fee) FROM concert WHERE singer_id IN (1, 2)"), Reply("55 together.")),
)


def _scenario(
    name: str, shows: str, *parts: Part, question: str = QUESTION, **more: Any
) -> Scenario:
    scripts = {who: (script,) if isinstance(script, Reply) else script for who, script in parts}
    replies = tuple(reply for script in scripts.values() for reply in script)
    return Scenario(
        name,
        shows,
        replies,
        question,
        options={"environment": "split_sql", "told": scripts},
        **more,
    )


def _planner(*replies: Reply) -> Part:
    return "planner", replies


_MANY = [("a", f"Task {number}") for number in range(10)]

SCENARIOS: tuple[Scenario, ...] = (
    _scenario(
        "one_after_another",
        "the second worker is told what the first found",
        _planner(_hand(_ASK_IDS), _hand(_ASK_FEES), ANSWER),
        _A,
        _B,
        ("critic", RIGHT),
    ),
    _scenario(
        "at_once",
        "two workers at once",
        _planner(_hand(_ASK_IDS, _ASK_FEES), ANSWER),
        _A,
        _B,
        ("critic", RIGHT),
    ),
    _scenario(
        "one_worker_twice",
        "one worker with two tasks at once",
        _planner(_hand(("a", "First"), ("a", "Second")), ANSWER),
        ("First", (_query("a", "SELECT 1"), Reply("one"))),
        ("Second", (_query("a", "SELECT 2"), _query("a", "SELECT 3"), Reply("three"))),
        ("critic", RIGHT),
    ),
    _scenario("answered_at_once", "nothing is handed over", _planner(ANSWER), ("critic", RIGHT)),
    _scenario(
        "wrong_then_fixed",
        "the critic disagrees, and the planner asks again",
        _planner(_hand(_ASK_IDS), Reply("They cost 20."), _hand(_ASK_FEES), ANSWER),
        _A,
        _B,
        ("critic", WRONG),
    ),
    _scenario(
        "never_approved",
        "the second answer is not checked",
        _planner(Reply("20"), Reply("30")),
        ("critic", WRONG),
    ),
    _scenario(
        "calls_beside_handoffs",
        "a handoff to nobody, one without a task, one that is no JSON, a worker's own tool",
        _planner(
            calling(
                ("transfer_to_worker_c", '{"task": "x"}'),
                ("transfer_to_worker_a", '{"tsk": "x"}'),
                ("transfer_to_worker_a", "{"),
                ("transfer_to_worker_a", json.dumps({"task": _IDS})),
                ("query_a", '{"sql": "SELECT 1"}'),
            ),
            ANSWER,
        ),
        _A,
        ("critic", RIGHT),
    ),
    _scenario(
        "another_ones_tool",
        "a worker calls what another worker has",
        _planner(_hand(("a", "Both")), ANSWER),
        ("Both", (_query("b", "SELECT fee FROM concert"), Reply("I cannot."))),
        ("critic", RIGHT),
    ),
    _scenario(
        "ten_at_once",
        "ten handoffs at once: four are carried out",
        _planner(_hand(*_MANY), ANSWER),
        *((f"Task {number}", Reply(f"did {number}")) for number in range(4)),
        ("critic", RIGHT),
    ),
    _scenario(
        "back_and_forth",
        "a planner that hands over for ever",
        _planner(*(_hand(("a", f"Again {number}")) for number in range(8))),
        *((f"Again {number}", Reply("Ask me again.")) for number in range(8)),
        ("critic", WRONG),
        max_turns=2,
    ),
    _scenario(
        "call_after_the_limit",
        "a worker that never reports",
        _planner(_hand(_ASK_IDS), ANSWER),
        (_IDS, tuple(_query("a", f"SELECT {number}") for number in range(4))),
        ("critic", RIGHT),
        max_turns=2,
    ),
    _scenario(
        "long_result",
        "a result cut to its limit",
        _planner(_hand(("b", "All")), ANSWER),
        (
            "All",
            (
                _query(
                    "b",
                    "SELECT a.id, b.id, c.id, printf('%080d', 7) FROM concert a, concert b, concert c",
                ),
                Reply("many"),
            ),
        ),
        ("critic", RIGHT),
    ),
    _scenario(
        "unicode",
        "umlauts, Chinese, emoji, in tasks and reports",
        _planner(_hand(("a", "Welche Sängerin? 哪个 🎵")), Reply("Jürgen 👍")),
        ("Welche Sängerin? 哪个 🎵", (_query("a", "SELECT 'Größe'"), Reply("Größe 金"))),
        ("critic", RIGHT),
        question="Wer singt über 10 €? 哪条街?",
    ),
    _scenario(
        "template_characters",
        "braces, percent signs, backslashes",
        _planner(_hand(("a", "{task} %s \\n {{x}}")), Reply("{answer} 100 %")),
        ("{task} %s \\n {{x}}", Reply("{report} %d C:\\new")),
        ("critic", RIGHT),
        question="What is {question} with 100 %s of {context}?",
    ),
    _scenario(
        "empty_report",
        "a worker says nothing",
        _planner(_hand(_ASK_IDS), ANSWER),
        (_IDS, Reply("")),
        ("critic", RIGHT),
    ),
    _scenario(
        "empty_reply", "the planner says nothing", _planner(Reply(""), Reply("")), ("critic", WRONG)
    ),
    _scenario(
        "words_beside_a_handoff",
        "words beside a handoff",
        _planner(_hand(_ASK_IDS, text="First, ids."), ANSWER),
        _A,
        ("critic", RIGHT),
    ),
    _scenario(
        "server_error",
        "500 to a worker",
        _planner(_hand(_ASK_IDS), ANSWER),
        (_IDS, (_query("a", "SELECT 1"), Reply.failure(500))),
    ),
    _scenario(
        "rate_limited",
        "429 to the first call, then answers",
        _planner(Reply.failure(429, retry_after="0"), ANSWER),
        ("critic", RIGHT),
    ),
    _scenario(
        "refused",
        "400 to the critic",
        _planner(ANSWER),
        ("critic", Reply.failure(400, "invalid request")),
    ),
    _scenario(
        "broken_connection",
        "a worker's connection breaks",
        _planner(_hand(_ASK_IDS), ANSWER),
        (_IDS, Reply(drop="before")),
    ),
    _scenario(
        "timeout",
        "a worker's model never answers",
        _planner(_hand(_ASK_IDS), ANSWER),
        (_IDS, (_query("a", "SELECT 1"), Reply(hang=True))),
        timeout_s=3.0,
    ),
)


def stage(scenario: Scenario, folder: Path) -> tuple[Task, Problem]:
    """Return a question over two databases; its gold contains the canary."""
    paths = {}
    for name, script in DATABASE.items():
        paths[name] = str(folder / "split" / name / f"{name}.sqlite")
        build_database(script, Path(paths[name]), "scenarios")
    data = {DATABASES: paths, GOLD_IS: "answer", "facts": [CANARY]}
    task = Task(
        scenario.name, "scenarios", "scenarios", scenario.question, f"55 {CANARY}", data=data
    )
    return task, Problem(task.id, scenario.question)


class Script:
    """Answer each speaker with its own next reply, in any order of the workers' calls."""

    def __init__(self, scenario: Scenario) -> None:
        self._left = {who: list(replies) for who, replies in scenario.options["told"].items()}

    def __call__(self, request: ReceivedRequest) -> Reply:
        left = self._left.get(self._who(request), [])
        return left.pop(0) if left else Reply.failure(500, "the scenario is over")

    @staticmethod
    def _who(request: ReceivedRequest) -> str:
        system, user = (str(request.messages[at]["content"]) for at in (0, 1))
        return (
            "planner"
            if system == PLANNER
            else "critic"
            if system == CRITIC
            else user.removeprefix("Task: ")
        )
