"""The course `pocket_split`: members of teams, and single agents; from nothing it makes `pocket-split`.

A question that invites a slip (a worker asked for what it cannot know, half of an answer made up) gets it in many
conversations, so that reinforcement has something to unlearn, and the critic notices half of them; `--slips` says in
how many, `--no-habits` has right ones alone. Needs no network, and no agent framework, unless `--agents` names some:
each of them plays the training questions, too, and the policy learns what it asks (`recipes/pocket_split/played.py`).
"""

from __future__ import annotations

import argparse
import json
import pickle
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from harness import plugins
from harness_sql.tool_loop.prompts import PROMPTS
from harness_teams.program import TeamProgram
from harness_teams.questions import THEMES
from recipes.finetune.course import PRETRAINING, Course, Small
from recipes.finetune.play import collect
from recipes.finetune.policy import Policy, share, spread
from recipes.finetune.rows import text_of
from recipes.medical.samples import CHAT_TEMPLATE, Dialogue, system_text, tool_text
from recipes.pocket_split.played import PlayedExamples, conversations, lessons
from recipes.pocket_split.samples import CORRECT, WRONG, Members, SplitExamples
from recipes.pocket_sql.tokenizer import END, train

VOCABULARY = 1280
"""At most."""
ARCHITECTURE = (256, 640, 6, 4, 2)
"""4.5 million parameters, 9 MB."""
DEFAULTS = PRETRAINING | {"name": "pocket-split", "minutes": 8.0, "batch_tokens": 16384}
MAX_NEW_TOKENS = 96
SLIPS = 0.5
TOKENIZER_INDICES = 400
HELD_OUT = 40
"""Pairs of databases, from a seed of their own."""


@contextmanager
def course(arguments: argparse.Namespace, tokenizer: Any) -> Iterator[Course]:
    """Held out are conversations about other databases: the share of replies that are the teacher's, by member."""
    slips = SLIPS if arguments.slips is None else arguments.slips
    made = SplitExamples(arguments.seed, slips if arguments.habits else 0.0)
    held = SplitExamples(arguments.seed + 1_000_000, 0.0)
    turns: dict[str, list[tuple[str, str]]] = {}
    for index in range(arguments.limit or HELD_OUT):
        for dialogue in held(index):
            turns.setdefault(member_of(dialogue), []).extend(asked_and_said(dialogue))
    about: dict[str, Any] = {"slips": made.slips}
    if not arguments.agents:
        yield _course(made, turns, about, phrases())
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "dialogues.pickle"
        learned, about["transcripts"] = played(arguments, made, turns)
        file.write_bytes(pickle.dumps(learned))
        tools = sorted({tool_text(tool) for one in learned for tool in one.tools})
        yield _course(
            PlayedExamples(made, str(file)),
            turns,
            about | {"agents": arguments.agents},
            phrases(tools),
        )


def played(
    arguments: argparse.Namespace, made: SplitExamples, turns: dict[str, list[tuple[str, str]]]
) -> tuple[list[Dialogue], int]:
    """What the agents were asked about training questions, and how many transcripts; those of `val` are held out.

    Raises:
        ConfigError: An agent is of another program.
    """
    for agent in arguments.agents:
        plugins.check_fit(plugins.agent_spec(agent).name, "pocket_split")
    jobs = {
        agent: [
            *lessons(agent, "train", arguments.limit, made.slips, made.seed),
            *lessons(agent, "val", arguments.limit),
        ]
        for agent in arguments.agents
    }
    learned: list[Dialogue] = []
    transcripts = collect(jobs, arguments.transcripts)
    for one in transcripts:
        if one.task.startswith("train"):
            learned += conversations(one)
        else:
            turns.setdefault(one.agent, []).extend(
                turn for told in conversations(one) for turn in asked_and_said(told)
            )
    return learned, len(transcripts)


def _course(
    source: SplitExamples | PlayedExamples,
    turns: dict[str, list[tuple[str, str]]],
    about: dict[str, Any],
    whole: Sequence[str],
) -> Course:
    """The course on a source; `whole` are the texts that a tokenizer made for it has as one token each."""

    def right(member: str, policy: Policy, most: int | None) -> float:
        policy.max_new_tokens = MAX_NEW_TOKENS
        chosen = spread(turns[member], most and max(1, most // len(turns)))
        replies = policy.go_on([prompt for prompt, _ in chosen])
        return share(
            [reply.strip() == said for reply, (_, said) in zip(replies, chosen, strict=True)]
        )

    def tokenizer_of() -> Any:
        texts = [
            text_of(dialogue) for index in range(TOKENIZER_INDICES) for dialogue in source(index)
        ]
        return train(texts, VOCABULARY, whole, CHAT_TEMPLATE)

    return Course(
        source,
        {member: partial(right, member) for member in turns},
        tuple(turns),
        TeamProgram.prompts_hash,
        Small(ARCHITECTURE, tokenizer_of),
        about,
        chat_template=CHAT_TEMPLATE,
    )


def member_of(dialogue: Dialogue) -> str:
    """Whose conversation it is."""
    prompts = TeamProgram.prompts
    names = {
        prompts.planner.system: "planner",
        prompts.worker.system: "worker",
        prompts.critic.system: "critic",
    }
    return names.get(dialogue.messages[0]["content"], "alone")


def asked_and_said(dialogue: Dialogue) -> Iterator[tuple[str, str]]:
    """Every reply with the prompt before it."""
    told = ""
    for text, learnt in dialogue.pieces():
        if learnt:
            yield told, text.removesuffix(END)
        told += text


def phrases(tools: Sequence[str] = ()) -> list[str]:
    """Texts that are one token each: what every conversation of a kind has, tools, names of tables and columns.

    Args:
        tools: As agents word them; those of the program are among them anyway.
    """
    prompts = TeamProgram.prompts
    found: list[str] = [*tools]
    for members in map(Members, THEMES):
        handoffs = [one.tool for one in members.prompts.handoffs]
        found += [tool_text(tool.definition) for tool in (*members.tools, *handoffs)]
    systems = [one.system for one in (prompts.planner, prompts.worker, prompts.critic, PROMPTS)]
    found += [
        line
        for text in (*systems, system_text("", []))
        for line in text.splitlines()
        if len(line) > 3
    ]
    for name, argument in (("transfer_to_worker_", "task"), ("query_", "sql")):
        for letter in "ab":
            call = json.dumps({"name": f"{name}{letter}", "arguments": {argument: "@"}})
            found.append(f"<tool_call>\n{call.partition('@')[0]}")
    found += [
        '"}}\n</tool_call>',
        "<tool_response>\n",
        "\n</tool_response>",
        "system\n",
        "user\n",
        "assistant\n",
    ]
    found += ["Question: ", "Task: ", "Reports:\n", "Answer:\n", "Critic:\n", CORRECT, WRONG]
    found += [
        " was asked: ",
        " reported: ",
        "worker_a",
        "worker_b",
        "The ids are ",
        "The total is ",
        "There are ",
    ]
    found += [
        "SELECT ",
        " FROM ",
        " WHERE ",
        " IN (",
        " AND ",
        " GROUP BY ",
        " ORDER BY ",
        " DESC LIMIT 1",
        "COUNT(*)",
    ]
    for theme in THEMES:
        words = (theme.who, theme.one, theme.group, theme.what, theme.key, theme.kind, theme.amount)
        found += [*words, *theme.groups, *theme.kinds]
    return list(dict.fromkeys(one for one in found if re.search(r"\S", one)))
