"""Perfect team members for `pocket_split`, and a perfect single agent.

Each sees only its own conversation.

Tasks follow from the wording of a question or task, replies from earlier results. They produce
transcripts for training, and prove that an agent can answer every question from what it is shown.
`python -m harness.scripted.server --script harness_teams.teacher:script` serves them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

from harness import Reply
from harness_sql.tool_loop.scenarios import calling
from harness_teams.prompts import CRITIC, PLANNER, WORKER
from harness_teams.questions import Question, Step
from harness_teams.tasks import SIZES, drawn

UNKNOWN = "I do not know."
"""The reply to an unplanned request."""


class Asked(Protocol):
    """A request to a model."""

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """The conversation."""


def questions() -> Iterator[tuple[str, Question]]:
    """Yield every question of every split with its task id."""
    for split in SIZES:
        for pair, asked in drawn(split):
            for number, one in enumerate(asked):
                yield f"{pair.name}-{number}", one


def _pattern(template: str) -> re.Pattern[str]:
    """Return a template as a pattern; `{0}` becomes the group `f0`."""
    return re.compile(re.sub(r"\\{(\d)\\}", r"(?P<f\1>.+)", re.escape(template)))


def _filled(template: str, found: Mapping[int, str]) -> str:
    return template.format(*(found.get(at, "") for at in range(2)))


class Teacher:
    """Reply to requests about some questions, identified by their wording.

    Args:
        asked: The questions. Questions with the same text have the same plan, so any of them
            counts.
    """

    def __init__(self, asked: Iterable[Question]) -> None:
        self._asked = {one.text: one for one in asked}
        self._steps = {
            step.task: (_pattern(step.task), at, step)
            for one in self._asked.values()
            for at, step in enumerate(one.plan)
        }

    def __call__(self, request: Asked) -> Reply:
        """Return the reply to a request of any member; plain text for an unplanned request."""
        said = request.messages
        system, user = (str(said[at]["content"]) for at in (0, 1))
        if system == CRITIC:
            return Reply("CORRECT")
        results = [str(one["content"]) for one in said if one["role"] == "tool"]
        if system == WORKER:
            return self._work(user.removeprefix("Task: "), results)
        question = self._asked.get(user.rpartition("Question: ")[2])
        if question is None:
            return Reply(UNKNOWN)
        planner = system == PLANNER
        found = {
            at: _read(question.plan[at].report if planner else "", at, one)
            for at, one in enumerate(results)
        }
        due = [at for at in range(len(question.plan)) if at not in found]
        if not due:
            return Reply(_filled(question.said, found))
        at_once = [step for step in question.plan if step.round == question.plan[due[0]].round]
        if planner:
            tasks = (
                (f"transfer_to_worker_{step.database}", {"task": _filled(step.task, found)})
                for step in at_once
            )
            return calling(*((name, json.dumps(given)) for name, given in tasks))
        return calling(*(_query(step, found) for step in at_once))

    def _work(self, task: str, results: Sequence[str]) -> Reply:
        for pattern, at, step in self._steps.values():
            if told := pattern.fullmatch(task):
                found = {int(name[1:]): value for name, value in told.groupdict().items()}
                if not results:
                    return calling(_query(step, found))
                return Reply(_filled(step.report, {**found, at: _read("", at, results[-1])}))
        return Reply(UNKNOWN)


@cache
def _of_all() -> Teacher:
    return Teacher(one for _, one in questions())


def script(request: Asked) -> Reply:
    """Return the reply about any question of the task set."""
    return _of_all()(request)


def _query(step: Step, found: Mapping[int, str]) -> tuple[str, str]:
    return f"query_{step.database}", json.dumps({"sql": _filled(step.sql, found)})


def _read(report: str, at: int, text: str) -> str:
    """Return the result of a step, from a worker's report or from the rows of a result."""
    if not report:
        return ", ".join(text.splitlines()[1:])
    told = _pattern(report).fullmatch(text)
    return told[f"f{at}"] if told else text
