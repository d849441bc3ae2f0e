"""Transcripts of teams and single agents, played against a teacher who knows every plan, and slips as it is told.

What a framework says of a tool, and what it hands on, differs from the program's own words, and a small policy notices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any, Literal

from harness.config import load_config
from harness.mock_model.completion import Reply
from harness.rollout.request import RolloutRequest
from harness_teams.prompts import CRITIC
from harness_teams.questions import Pair, Question
from harness_teams.tasks import PocketSplitTasks, drawn
from harness_teams.teacher import UNKNOWN, Request, Teacher
from recipes.finetune.play import Job, Transcript, dealt, gone_on
from recipes.finetune.rows import text_of
from recipes.medical.samples import Dialogue
from recipes.pocket_split.samples import CORRECT, NOTICED, WRONG, SplitExamples, slip_of

EACH = 24
"""Played conversations of an index; as many as are made."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """The teacher of one question: every member is told apart by its own conversation.

    Attributes:
        slip: The question as a slip plans and answers it; None: there is none.
        noticed: Whether the critic finds the slip, and the planner, asked again, has the right plan.
    """

    question: Question
    slip: Question | None = None
    noticed: bool = False

    def __call__(self, request: Request) -> Reply:
        """The reply to a request of any member, or of a single agent."""
        messages = request.messages
        if self.slip is None:
            return _teacher(self.question)(request)
        if messages[0]["content"] == CRITIC:
            return Reply(WRONG if self.noticed else CORRECT)
        told = [
            at
            for at, one in enumerate(messages)
            if one["role"] == "user" and WRONG in str(one["content"])
        ]
        if told:  # in its first words, or where a planner that keeps its conversation is told so
            return _teacher(self.question)(
                _Said([messages[0], messages[1], *messages[max(told[0], 1) + 1 :]])
            )
        reply = _teacher(self.slip)(request)
        return reply if reply.text != UNKNOWN else _teacher(self.question)(request)


@dataclass(frozen=True, slots=True)
class _Said:
    messages: Sequence[Mapping[str, Any]]


@cache
def _teacher(question: Question) -> Teacher:
    return Teacher([question])


def slipped(pair: Pair, question: Question) -> Question | None:
    """A question with the plan and the answer of the slip that it invites; None where that would be right."""
    if (slip := slip_of(pair, question)) is None:
        return None
    first, *_ = slip[0]
    planned = next(step for step in question.plan if step.database == first.step.database)
    step = replace(first.step, report=planned.report.replace("{1}", "{0}"))
    return replace(question, plan=(step,), template=question.template.replace("{1}", "{0}"))


def lessons(
    agent: str,
    split: Literal["train", "val"],
    limit: int | None = None,
    slips: float = 0.0,
    seed: int = 1,
) -> list[Job]:
    """The tasks of a split, or the first of them, for one agent; slips are the same for all."""
    config, task_set = load_config("pocket-split", agent=agent), PocketSplitTasks()
    asked = [(pair, question) for pair, questions in drawn(split) for question in questions]
    jobs = []
    for task, (pair, question) in list(zip(task_set.load(split), asked, strict=True))[:limit]:
        rng = Random(f"pocket_split-played/{seed}/{task.id}")
        slip = slipped(pair, question) if rng.random() < slips else None
        lesson = Lesson(question, slip, rng.random() < NOTICED)
        jobs.append(
            Job(RolloutRequest.build(task, task_set.context(task), config, split), lesson, {})
        )
    return jobs


def conversations(transcript: Transcript) -> list[Dialogue]:
    """What each member said: calls that go on from one another are one conversation."""
    found: list[Dialogue] = []
    told: list[str] = []
    for call in transcript.calls:
        at = gone_on(text_of(Dialogue(call.tools, call.messages)), told)
        found[at : at + 1] = [Dialogue(call.tools, [*call.messages, call.reply])]
        told[at : at + 1] = [text_of(found[at])]
    return found


@dataclass(frozen=True, slots=True)
class PlayedExamples:
    """Made and played conversations of one seed, as many of each, as a source of training data.

    Attributes:
        file: A pickled list of `Dialogue`, of as many transcripts of each agent.
    """

    made: SplitExamples
    file: str

    def __call__(self, index: int) -> Iterator[Dialogue]:
        yield from self.made(index)
        yield from dealt(self.file, self.made.seed, index, EACH)
