"""A course from any agents on any task set with gold queries: what each is asked, and what should have been said.

A scaffold is how an agent words its requests: its system prompt, its tools, the order of its messages. A policy that
knows one scaffold alone is no fair start for the others. So every agent plays every question against a teacher, through
the gateway as in a run; what is learned are the requests that came, rendered by the chat template of the base, and the
teacher's replies, all agents in equal shares. The teacher knows gold; the agent does not. A share of the questions is
played once more with a first draft that is wrong on purpose, so that a check rejects it and a repair is asked for; this
draft is not learnt.

On `pocket_probe` nobody can know how values are stored, so its teacher drafts by the prior and seldom looks, as in the
course of that name; a question is played once. `--split random` has random databases played instead of bundled ones,
beside as many conversations that are made; from nothing that makes a policy with a tokenizer for all scaffolds.

Where the schema is shown in the compact style, every use of a transcript has other names and another schema
(`spider_sql.variation`): the questions of a task set are few.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

from harness import plugins
from harness.config import Config, load_config
from harness.contracts.tasks import TaskSet
from harness.errors import ConfigError
from harness.mock_model.completion import Reply
from harness.records import Task, arguments_text
from harness.rollout.request import RolloutRequest
from harness_policy_server.hermes import for_template, read_calls
from harness_sql.rewards.gold import has_query, in_words
from harness_sql.self_correcting.prompts import APPROVED, PROMPTS, REJECTED
from harness_sql.sqlite.environment import database_of, tool_of
from harness_sql.sqlite.evaluator import evaluate
from harness_sql.tool_loop.scenarios import calling
from recipes.finetune.course import Course, Small
from recipes.finetune.play import Job, Transcript, collect, dealt, gone_on
from recipes.finetune.policy import Policy, share, spread
from recipes.finetune.rows import Source, text_of
from recipes.medical.samples import CHAT_TEMPLATE
from recipes.pocket_probe.played import SPLIT, BesideMade, random_tasks
from recipes.pocket_probe.samples import ProbeExamples, taught
from recipes.pocket_split.course import ARCHITECTURE as SEVERAL_AGENTS
from recipes.pocket_sql.samples import PRAISE, block
from recipes.pocket_sql.tokenizer import END, phrases, train
from recipes.spider_sql import course as spider
from recipes.spider_sql.questions import Question, Wrong, prepared
from recipes.spider_sql.variation import vary

DEFAULTS = {**spider.DEFAULTS, "name": "scaffolds"}
TOKENIZER_INDICES = 200
VOCABULARY = 1536
"""At most, of a policy for random databases."""
SHORT = 12
"""Characters; lines that are shorter are no token of their own."""
_LINE_ENDS = re.compile(r"\n|<\|im_start\|>|<\|im_end\|>")
TEACHERS: dict[str, Callable[[Task, str, Random], tuple[str, ...]]] = {"pocket_probe": taught}
"""What a teacher says on a task set where gold is not to be known, given a task and its schema."""
Render = Callable[..., str]
"""Renders messages, as a tokenizer's `apply_chat_template`."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """A task, and what the teacher knows of it.

    Attributes:
        wrong: The first draft, where it is wrong on purpose.
        said: What the model says instead, in turn; all of it is learnt.
    """

    task: Task
    question: Question
    wrong: Wrong | None = None
    said: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Of its rollouts."""
        return f"{self.task.id}+wrong" if self.wrong else self.task.id

    def replies(self, program: str, tool: tuple[str, str]) -> tuple[Reply, ...]:
        """What the model should say, call by call.

        Args:
            tool: The name of the environment's tool, and of its argument.
        """
        if self.said:
            return tuple(map(Reply, self.said))
        drafts = [self.wrong.sql, self.question.sql] if self.wrong else [self.question.sql]
        if plugins.program(program).calls_tools:
            name, argument = tool
            calls = (
                calling((name, json.dumps({argument: sql}, ensure_ascii=False))) for sql in drafts
            )
            return (*calls, Reply(in_words(self.task) or self.question.sql))
        approved = (Reply(block(self.question.sql)), Reply(f"{PRAISE}\n{APPROVED}"))
        if self.wrong is None:
            return approved
        return (Reply(block(self.wrong.sql)), Reply(f"{self.wrong.remark}\n{REJECTED}"), *approved)


def lessons(
    tasks: Sequence[Task],
    arguments: argparse.Namespace,
    max_turns: int,
    contexts: Mapping[str, Mapping[str, str]],
    held: Collection[str],
) -> list[Lesson]:
    """The lessons on tasks, the same for every agent; tasks whose gold changes its result in the common style go.

    Args:
        contexts: What agents are shown beside a question, by task.
        held: Tasks that are held out.
    """
    found, teacher = [], TEACHERS.get(arguments.on)
    for task, question in prepared(tasks, arguments.workers):
        rng = Random(f"lesson/{arguments.seed}/{task.id}")
        if teacher and task.id not in held:
            found.append(
                Lesson(task, question, said=teacher(task, contexts[task.id]["schema"], rng))
            )
            continue
        found.append(Lesson(task, question))
        if question.wrong and max_turns > 1 and rng.random() < arguments.wrong:
            found.append(Lesson(task, question, rng.choice(question.wrong)))
    return found


def jobs(
    agent: str, told: Sequence[Lesson], config: Config, contexts: Mapping[str, Mapping[str, str]]
) -> list[Job]:
    """The lessons as rollouts of an agent."""
    config = config.model_copy(update={"agent": agent})
    (tool,) = plugins.environment(plugins.environment_of(config.task.name)).tools
    (argument,) = tool.parameters["properties"]
    made = []
    for one in told:
        request = RolloutRequest.build(one.task, contexts[one.task.id], config, "train")
        request = replace(request, problem=replace(request.problem, task_id=one.id))
        replies = one.replies(request.program, (tool_of(one.task), argument))
        made.append(Job(request, replies, {}))
    return made


@dataclass(frozen=True, slots=True)
class Row:
    """A conversation as it was rendered: the calls that go on from one another, the replies learnt.

    Attributes:
        seen: The question as the transcript shows it, its results included; None where it cannot be varied.
        schema: The text of its schema.
    """

    parts: tuple[tuple[str, bool], ...]
    seen: Question | None = None
    schema: str = ""

    def pieces(self) -> list[tuple[str, bool]]:
        return [("", False), *self.parts]

    def varied(self, others: Sequence[Question], rng: Random) -> Row:
        """The same conversation about another schema."""
        if self.seen is None:
            return self
        new, schema = vary(self.seen, others, rng)
        told = [(self.schema, schema), *zip(_texts(self.seen), _texts(new), strict=True)]
        change = {old: other for old, other in told if old}
        change |= {_escaped(old): _escaped(other) for old, other in change.items()}
        pattern = re.compile("|".join(map(re.escape, sorted(change, key=len, reverse=True))))
        return Row(
            tuple(
                (pattern.sub(lambda found: change[found[0]], text), learnt)
                for text, learnt in self.parts
            )
        )


def _texts(question: Question) -> list[str]:
    """All of a question that stands in a conversation."""
    return [
        question.text,
        question.sql,
        question.shown,
        *(t for w in question.wrong for t in (w.sql, w.shown)),
    ]


def _escaped(text: str) -> str:
    """As in a tool call's JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


@dataclass(frozen=True, slots=True)
class ScaffoldRows:
    """The rows of all transcripts, as a source of training data.

    Attributes:
        file: A pickled list of the rows of each transcript.
        others: A pickled list of questions whose tables may be added.
    """

    seed: int
    file: str
    others: str

    def __call__(self, index: int) -> Iterator[Row]:
        rng = Random(f"scaffolds/{self.seed}/{index}")
        others = _read(self.others)
        for rows in dealt(self.file, self.seed, index):
            # One random stream for the rows of a transcript: they are about the same question.
            drawn = rng.random()
            yield from (row.varied(others, Random(drawn)) for row in rows)


@cache
def _read(file: str) -> list[Question]:
    found: list[Question] = pickle.loads(Path(file).read_bytes())
    return found


def rows_of(
    transcript: Transcript, render: Render, end: str, lesson: Lesson, schema: str
) -> list[Row]:
    """The rows of one transcript in which something is learnt.

    Args:
        end: The text that ends a turn, which is learnt with the reply.
        schema: What the agent was shown; empty where names shall stay.

    Raises:
        ConfigError: The chat template does not put a reply after its prompt.
    """
    rows: list[list[tuple[str, bool]]] = []
    for call in transcript.calls:
        prompt, said = (
            prompt_of(call, render),
            _rendered([*call.messages, call.reply], call, render),
        )
        reply, found, _ = said.removeprefix(prompt).rpartition(end)
        if not said.startswith(prompt) or not found:
            raise ConfigError(
                "the base's chat template does not show a reply after its prompt, ended: name another"
            )
        learnt = lesson.wrong is None or query_in(call.reply) != lesson.wrong.sql
        before = ["".join(text for text, _ in row) for row in rows]
        if (on := gone_on(prompt, before)) == len(rows):
            rows.append([(prompt, False), (reply + end, learnt)])
        else:
            rows[on] += [(prompt.removeprefix(before[on]), False), (reply + end, learnt)]
    rows = [row for row in rows if any(learnt for _, learnt in row)]
    seen = _seen(transcript, lesson)
    whole = ["".join(text for text, _ in row) for row in rows]
    if not schema or any(schema not in text or seen.text not in text for text in whole):
        return [Row(tuple(row)) for row in rows]
    return [Row(tuple(row), seen, schema) for row in rows]


def _seen(transcript: Transcript, lesson: Lesson) -> Question:
    """The lesson's question with the results that the agent was shown."""
    shown = {arguments_text(arguments): text for arguments, text in transcript.executed}
    wrong = tuple(replace(one, shown=shown.get(one.sql, "")) for one in (lesson.wrong,) if one)
    return replace(lesson.question, shown=shown.get(lesson.question.sql, ""), wrong=wrong)


def prompt_of(call: Any, render: Render) -> str:
    """A call's request as the model is prompted with it."""
    return _rendered(call.messages, call, render, add_generation_prompt=True)


def _rendered(messages: Sequence[Mapping[str, Any]], call: Any, render: Render, **more: Any) -> str:
    return render(
        for_template(messages), tools=call.tools or None, tokenize=False, **call.template, **more
    )


def query_in(reply: Mapping[str, Any]) -> str:
    """The query in a reply: what it calls a tool with, else what it says."""
    if calls := reply.get("tool_calls"):
        given = json.loads(calls[0]["function"]["arguments"])
        return arguments_text(given) if isinstance(given, dict) else ""
    return PROMPTS.parse_sql(reply["content"])


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of a scaffold, to be answered by a policy.

    Attributes:
        kind: `draft`, the first of a rollout; `check`; or `further`, of a query after the first.
        approves: Of a check, whether it should.
    """

    prompt: str
    kind: str
    task: Task
    approves: bool = False

    def right(self, reply: str) -> bool:
        """Whether a reply is as good as the teacher's: its query gives gold's result, or its verdict is the same."""
        if self.kind == "check":
            return PROMPTS.approves(reply) == self.approves
        words, calls = read_calls(reply, ())
        sql = query_in({"content": words, "tool_calls": calls})
        return evaluate(database_of(self.task), self.task.gold, sql).match is True


def asked_by(transcript: Transcript, render: Render, lesson: Lesson) -> Iterator[Asked]:
    """Its requests whose answers can be judged, each once: not for answers in words."""
    task = lesson.task
    for number, call in enumerate(transcript.calls):
        if not number and lesson.wrong:
            continue  # asked in the lesson without it, too
        said, prompt = call.reply["content"], prompt_of(call, render)
        if APPROVED in said or REJECTED in said:
            yield Asked(prompt, "check", task, PROMPTS.approves(said))
        elif not number or said != (in_words(task) or None):
            yield Asked(prompt, "further" if number else "draft", task)


def _answered(policy: Policy, asked: Sequence[Asked], longest: int) -> list[bool]:
    policy.max_new_tokens = longest
    return [
        one.right(reply)
        for one, reply in zip(asked, policy.go_on([one.prompt for one in asked]), strict=True)
    ]


def _splits(
    task_set: TaskSet, arguments: argparse.Namespace, folder: Path
) -> tuple[Sequence[Task], Sequence[Task]]:
    """Questions to learn and questions that are held out.

    Args:
        folder: Where databases of random questions are built.

    Raises:
        ConfigError: There are none, or some are both.
    """
    found = []
    for asked_for, split in (
        ("split", arguments.split or "train"),
        ("held-out", arguments.held_out or "val"),
    ):
        if asked_for == "split" and _random(arguments):
            chosen = random_tasks(folder, arguments.seed, arguments.limit)
        else:
            chosen = spread(
                [task for task in task_set.load(split) if has_query(task)], arguments.limit
            )
        if not chosen:
            raise ConfigError(
                f"--{asked_for} {split}: no question of {arguments.on!r} there has a gold query to teach"
            )
        found.append(chosen)
    learned_on, held_out = found
    if both := {task.id for task in held_out} & {task.id for task in learned_on}:
        raise ConfigError(
            f"--held-out: {len(both)} questions are learned as well, {min(both)!r} for one"
        )
    return learned_on, held_out


def _random(arguments: argparse.Namespace) -> bool:
    return arguments.on in TEACHERS and arguments.split == SPLIT


def fixed(transcripts: Sequence[Sequence[Row]]) -> list[str]:
    """Texts that one agent's requests and tool calls have again and again, for a tokenizer to have as one token each.

    They are the lines of a request that one transcript in twenty has, if they are not short, and how a call begins.
    """
    often: Counter[str] = Counter()
    calls: list[str] = []
    said: set[str] = set()
    for rows in transcripts:
        asked: set[str] = set()
        for text, learnt in (piece for row in rows for piece in row.parts):
            (said if learnt else asked).update(_LINE_ENDS.split(text))
            if learnt and text.startswith("<tool_call>"):
                calls.append(text)
        often.update(asked)
    lines = [
        line
        for line, times in often.items()
        if len(line) >= SHORT and 20 * times >= len(transcripts)
    ]
    begun, quote, _ = os.path.commonprefix(calls).rpartition('"')  # noqa: RUF071 - of texts
    return sorted(line for line in lines if line not in said) + [begun + quote] * bool(calls)


@contextmanager
def course(arguments: argparse.Namespace, tokenizer: Any) -> Iterator[Course]:
    """Held out are the first drafts of every scaffold, on questions of `--held-out`; `--until` looks at their mean.

    Of so many prompts each scaffold has its share.

    Raises:
        ConfigError: The agents, the task set and the base do not fit.
    """
    config = load_config(
        arguments.preset,
        overrides=arguments.set,
        agent=arguments.agents[0],
        task={"name": arguments.on},
    )
    for agent in arguments.agents:
        plugins.check_fit(plugins.agent_spec(agent).name, arguments.on)
    if plugins.environment_of(arguments.on) != "sql":
        raise ConfigError(
            f"--on {arguments.on!r}: the teacher knows gold queries alone. Name a task set over databases"
        )
    task_set = plugins.make_task_set(config)

    with tempfile.TemporaryDirectory() as temporary:
        yield _course(arguments, tokenizer, config, task_set, Path(temporary))


def _course(
    arguments: argparse.Namespace, tokenizer: Any, config: Config, task_set: TaskSet, folder: Path
) -> Course:
    learned_on, held_out = _splits(task_set, arguments, folder)
    held, tasks = {task.id for task in held_out}, [*learned_on, *held_out]
    contexts = {task.id: task_set.context(task) for task in tasks}
    told = {one.id: one for one in lessons(tasks, arguments, config.max_turns, contexts, held)}
    played = collect(
        {agent: jobs(agent, list(told.values()), config, contexts) for agent in arguments.agents},
        arguments.transcripts,
    )
    render, end, template = _rendering(tokenizer, played)
    rows: list[list[Row]] = []
    of: dict[str, list[list[Row]]] = defaultdict(list)
    asked: dict[str, list[Asked]] = defaultdict(list)
    for one in played:
        lesson = told[one.task]
        if lesson.task.id in held:
            asked[one.agent] += asked_by(one, render, lesson)
            continue
        context = contexts[lesson.task.id]
        plain = (
            bool(lesson.said) or len(context) > 1 or context["schema"].lstrip().startswith("CREATE")
        )
        rows.append(rows_of(one, render, end, lesson, "" if plain else context["schema"]))
        of[one.agent].append(rows[-1])
    learned = [one for one in told.values() if one.task.id not in held]
    longest = config.sampling.max_response_tokens

    def drafts(agent: str, policy: Policy, most: int | None) -> float:
        first = [one for one in asked[agent] if one.kind == "draft"]
        return share(_answered(policy, spread(first, most and max(1, most // len(asked))), longest))

    def report(policy: Policy) -> dict[str, Any]:
        found: dict[str, dict[str, float]] = {}
        for agent, whole in asked.items():
            later = [one for one in whole if one.kind != "draft"]
            verdicts = list(zip(later, _answered(policy, later, longest), strict=True))
            kinds = dict.fromkeys(one.kind for one in later)
            found[agent] = {
                kind: share([right for one, right in verdicts if one.kind == kind])
                for kind in kinds
            }
        return {"after_the_draft": found}

    files = [folder / f"{name}.pickle" for name in ("rows", "questions")]
    for file, content in zip(files, (rows, [one.question for one in learned]), strict=True):
        file.write_bytes(pickle.dumps(content))
    source: Source = ScaffoldRows(arguments.seed, *map(str, files))
    small = Small(
        spider.ARCHITECTURE, lambda: train(texts, spider.VOCABULARY, chat_template=CHAT_TEMPLATE)
    )
    if _random(arguments):
        source = BesideMade(ProbeExamples(arguments.seed), source)
        whole = {
            **dict.fromkeys(phrases()),
            **dict.fromkeys(text for of_one in of.values() for text in fixed(of_one)),
        }
        small = Small(SEVERAL_AGENTS, lambda: train(texts, VOCABULARY, list(whole), CHAT_TEMPLATE))
    texts = (text_of(row) for index in range(TOKENIZER_INDICES) for row in source(index))
    counts = {"transcripts": len(rows), "agents": arguments.agents}
    counts["wrong_drafts"] = sum(one.wrong is not None for one in learned)
    counts["questions"] = len(learned) - counts["wrong_drafts"]
    counts["varied_rows"] = share([row.seen is not None for some in rows for row in some])
    return Course(
        source,
        {agent: partial(drafts, agent) for agent in arguments.agents},
        arguments.agents,
        plugins.program(plugins.program_of(arguments.agents[0])).prompts_hash,
        small,
        counts,
        report,
        template,
    )


def _rendering(tokenizer: Any, transcripts: Sequence[Transcript]) -> tuple[Render, str, str | None]:
    """How conversations are rendered, the end of a turn, and the template where it is not the base's own.

    A base whose template shows no tools gets one that does, where an agent has tools: it learns to call them.
    """
    if tokenizer is None:
        from transformers import Qwen2Tokenizer

        plain: Any = Qwen2Tokenizer()
        return partial(plain.apply_chat_template, chat_template=CHAT_TEMPLATE), END, CHAT_TEMPLATE
    render: Render = tokenizer.apply_chat_template
    used = [tool for one in transcripts for call in one.calls for tool in call.tools]
    question = [{"role": "user", "content": "?"}]
    if not used or used[0]["function"]["name"] in render(question, tools=used[:1], tokenize=False):
        return render, tokenizer.eos_token, None
    return partial(render, chat_template=CHAT_TEMPLATE), END, CHAT_TEMPLATE
