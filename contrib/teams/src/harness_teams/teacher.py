"""Perfect team members for `pocket_split`, and a perfect single agent.

Each sees only its own conversation.

Tasks follow from the wording of a question or task, replies from earlier results. They produce
transcripts for training, and prove that an agent can answer every question from what it is shown.
`python -m harness.mock_model.server --script harness_teams.teacher:script` serves them.
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


class Request(Protocol):
    """A request to a model."""

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """The conversation."""


def questions() -> Iterator[tuple[str, Question]]:
    """Yield every question of every split with its task id."""
    for split in SIZES:
        for pair, pair_questions in drawn(split):
            for number, question in enumerate(pair_questions):
                yield f"{pair.name}-{number}", question


def _pattern(template: str) -> re.Pattern[str]:
    """Return a template as a pattern; `{0}` becomes the group `f0`."""
    return re.compile(re.sub(r"\\{(\d)\\}", r"(?P<f\1>.+)", re.escape(template)))


def _filled(template: str, results: Mapping[int, str]) -> str:
    return template.format(results.get(0, ""), results.get(1, ""))


class Teacher:
    """Reply to requests about some questions, identified by their wording.

    Args:
        known: The questions. Questions with the same text have the same plan, so any of them
            counts.
    """

    def __init__(self, known: Iterable[Question]) -> None:
        self._questions = {question.text: question for question in known}
        self._steps: dict[str, tuple[re.Pattern[str], int, Step]] = {}
        for question in self._questions.values():
            for index, step in enumerate(question.plan):
                # A worker reads only its task, so the task has to tell which step it is.
                self._steps[step.task] = (_pattern(step.task), index, step)

    def __call__(self, request: Request) -> Reply:
        """Return the reply to a request of any member; plain text for an unplanned request."""
        messages = request.messages
        system, user = str(messages[0]["content"]), str(messages[1]["content"])
        if system == CRITIC:
            return Reply("CORRECT")
        outputs = [str(message["content"]) for message in messages if message["role"] == "tool"]
        if system == WORKER:
            return self._work(user.removeprefix("Task: "), outputs)
        question = self._questions.get(user.rpartition("Question: ")[2])
        if question is None:
            return Reply(UNKNOWN)
        planner = system == PLANNER
        results = {}
        for index, output in enumerate(outputs):
            # Only the planner reads reports; a single agent reads rows.
            report = question.plan[index].report if planner else ""
            results[index] = _read(report, index, output)
        due = [index for index in range(len(question.plan)) if index not in results]
        if not due:
            return Reply(_filled(question.template, results))
        # Steps of one round do not depend on each other, so they are called together.
        next_round = question.plan[due[0]].round
        steps = [step for step in question.plan if step.round == next_round]
        call = _handoff if planner else _query
        return calling(*(call(step, results) for step in steps))

    def _work(self, task: str, outputs: Sequence[str]) -> Reply:
        for pattern, index, step in self._steps.values():
            if match := pattern.fullmatch(task):
                results = {int(name[1:]): value for name, value in match.groupdict().items()}
                if not outputs:
                    return calling(_query(step, results))
                results[index] = _read("", index, outputs[-1])
                return Reply(_filled(step.report, results))
        return Reply(UNKNOWN)


@cache
def _of_all() -> Teacher:
    return Teacher(question for _, question in questions())


def script(request: Request) -> Reply:
    """Return the reply about any question of the task set."""
    return _of_all()(request)


def _query(step: Step, results: Mapping[int, str]) -> tuple[str, str]:
    return f"query_{step.database}", json.dumps({"sql": _filled(step.sql, results)})


def _handoff(step: Step, results: Mapping[int, str]) -> tuple[str, str]:
    arguments = {"task": _filled(step.task, results)}
    return f"transfer_to_worker_{step.database}", json.dumps(arguments)


def _read(report: str, index: int, text: str) -> str:
    """Return the result of a step, from a worker's report or from the rows of a result."""
    if not report:
        return ", ".join(text.splitlines()[1:])
    match = _pattern(report).fullmatch(text)
    return match[f"f{index}"] if match else text
