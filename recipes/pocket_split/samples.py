"""What the members of a team say to each other about ever new databases, and what a single agent with all tools says.

Nothing is played: the words are the program's own, the plans the task set's, the results what the databases hold. A
test sees to it that they are, byte for byte, what a played team is asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from random import Random
from typing import Any

from harness import Problem, Tool
from harness.mock_model.completion import Reply
from harness_sql.tool_loop.prompts import PROMPTS, Prompts
from harness_sql.tool_loop.scenarios import calling
from harness_teams.environment import DATABASES, SplitEnvironment
from harness_teams.prompts import Report, TeamPrompts
from harness_teams.questions import Pair, Question, Step, Theme, draw_pair, questions_of
from recipes.medical.samples import Dialogue

CORRECT = "CORRECT"
WRONG = "WRONG: both workers have to be asked, one after the other."
NOTICED = 0.5
"""Share of slips that the critic notices."""
QUESTIONS = 4
"""Over each pair of databases."""


def tools_of(theme: Theme) -> tuple[Tool, ...]:
    """The environment's, for databases of a theme."""
    schemas = {
        "a": f"{theme.who}(id integer pk, name text, {theme.group} text)",
        "b": f"{theme.what}(id integer pk, {theme.key} integer, {theme.kind} text, {theme.amount} integer, "
        "year integer)",
    }
    payload = {DATABASES: {name: {"schema": text} for name, text in schemas.items()}}
    return SplitEnvironment().tools_for(payload)


def result(sql: str, found: str) -> str:
    """What the tool shows of a query of one column."""
    header = sql.removeprefix("SELECT ").partition(" FROM ")[0]
    return "\n".join([header, *found.split(", ")])


@dataclass(frozen=True, slots=True)
class Done:
    """A step as it was carried out."""

    step: Step
    found: str

    @property
    def report(self) -> Report:
        """What came of it."""
        return Report(f"worker_{self.step.database}", self.step.task, self.step.report)


def carried_out(question: Question) -> list[Done]:
    """The steps of a plan, with what they found filled in."""

    def filled(step: Step) -> Step:
        task, sql, report = (
            text.format(*question.found) for text in (step.task, step.sql, step.report)
        )
        return replace(step, task=task, sql=sql, report=report)

    return [
        Done(filled(step), found) for step, found in zip(question.plan, question.found, strict=True)
    ]


class Members:
    """Conversations about one theme."""

    def __init__(self, theme: Theme) -> None:
        self.tools = tools_of(theme)
        self.prompts = TeamPrompts(self.tools)
        self._of = {tool.name.rpartition("_")[2]: tool for tool in self.tools}

    def planner(self, problem: Problem, done: Sequence[Done], answer: str) -> Dialogue:
        """Steps of one round are handed over at once."""
        handoffs = [one.tool for one in self.prompts.handoffs]
        rounds = [
            (
                calling(
                    *(
                        (f"transfer_to_worker_{one.step.database}", _json(task=one.step.task))
                        for one in steps
                    )
                ),
                [one.step.report for one in steps],
            )
            for steps in _rounds(done)
        ]
        return _told(self.prompts.planner, handoffs, problem, rounds, answer)

    def worker(self, one: Done) -> Dialogue:
        step = one.step
        asked = [
            (
                calling((f"query_{step.database}", _json(sql=step.sql))),
                [result(step.sql, one.found)],
            )
        ]
        problem = Problem("", step.task)
        return _told(self.prompts.worker, [self._of[step.database]], problem, asked, step.report)

    def critic(self, problem: Problem, done: Sequence[Done], answer: str, said: str) -> Dialogue:
        told = self.prompts.review([one.report for one in done], answer)
        return _told(self.prompts.critic, [], replace(problem, context=told), [], said)

    def alone(self, problem: Problem, done: Sequence[Done], answer: str) -> Dialogue:
        """A single agent with all tools."""
        rounds = [
            (
                calling(
                    *((f"query_{one.step.database}", _json(sql=one.step.sql)) for one in steps)
                ),
                [result(one.step.sql, one.found) for one in steps],
            )
            for steps in _rounds(done)
        ]
        return _told(PROMPTS, self.tools, problem, rounds, answer)

    def again(self, problem: Problem, done: Sequence[Done], answer: str, said: str) -> Problem:
        """What the planner is asked once its answer was found wrong."""
        return replace(
            problem, context=self.prompts.again({}, [one.report for one in done], answer, said)
        )


def _json(**given: str) -> str:
    return json.dumps(given)


def _rounds(done: Sequence[Done]) -> Iterator[list[Done]]:
    return (list(steps) for _, steps in groupby(done, key=lambda one: one.step.round))


def _told(
    prompts: Prompts,
    tools: Sequence[Tool],
    problem: Problem,
    rounds: Sequence[tuple[Reply, list[str]]],
    answer: str,
) -> Dialogue:
    messages: list[dict[str, Any]] = list(prompts.messages(problem))
    for reply, results in rounds:
        calls: Sequence[Mapping[str, Any]] = reply.tool_calls or ()
        messages.append({"role": "assistant", "content": None, "tool_calls": list(calls)})
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": text}
            for call, text in zip(calls, results, strict=True)
        ]
    messages.append({"role": "assistant", "content": answer})
    return Dialogue([tool.definition for tool in tools], messages)


def slip_of(pair: Pair, question: Question) -> tuple[list[Done], str] | None:
    """A mistake that the question invites, and the answer that comes of it; None where that is right by chance."""
    theme, whole = pair.theme, carried_out(question)
    if question.kind in (
        "total",
        "count",
    ):  # the second worker is asked at once, and leaves out what it cannot know
        last = question.plan[1]
        sql = last.sql.replace(f" AND {theme.key} IN ({{0}})", "").replace(
            f" WHERE {theme.key} IN ({{0}})", ""
        )
        kind = next((kind for kind in theme.kinds if f"'{kind}'" in sql), None)
        rows = [one for one in pair.acts if kind is None or one.kind == kind]
        found = str(len(rows) if question.kind == "count" else sum(one.amount for one in rows))
        step = Step("b", 0, question.text, sql, last.report.format("", found))
        done, answer = [Done(step, found)], question.template.format("", found)
    elif question.kind == "both":  # the second half is made up
        done, answer = whole[:1], question.template.format(question.found[0], question.found[0])
    else:
        return None
    return None if answer == question.answer else (done, answer)


@dataclass(frozen=True, slots=True)
class SplitExamples:
    """Conversations of one seed, as a source of training data.

    Attributes:
        slips: Share of the questions that invite a slip and get it.
    """

    seed: int
    slips: float

    def __call__(self, index: int) -> Iterator[Dialogue]:
        rng = Random(f"pocket_split-course/{self.seed}/{index}")
        pair = draw_pair(str(index), rng)
        members = Members(pair.theme)
        for question in questions_of(pair, rng, QUESTIONS):
            problem, done = Problem("", question.text), carried_out(question)
            slip = slip_of(pair, question) if rng.random() < self.slips else None
            yield from map(members.worker, done)
            yield members.alone(problem, *(slip or (done, question.answer)))
            if slip is None:
                yield members.planner(problem, done, question.answer)
                yield members.critic(problem, done, question.answer, CORRECT)
                continue
            said = WRONG if rng.random() < NOTICED else CORRECT
            yield members.planner(problem, *slip)
            yield from map(members.worker, slip[0])
            yield members.critic(problem, *slip, said)
            if said == WRONG:
                yield members.planner(members.again(problem, *slip, said), done, question.answer)
