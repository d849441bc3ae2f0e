"""The course `pocket_split`: its conversations are, byte for byte, those of played teams."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import Problem
from harness.mock_model.server import ScriptedServer
from harness_teams.tasks import PocketSplitTasks, drawn
from harness_teams.teacher import questions, script
from recipes.finetune.__main__ import main as finetune
from recipes.finetune.play import play, read
from recipes.finetune.rows import text_of
from recipes.medical.samples import Dialogue
from recipes.pocket_split.course import asked_and_said, member_of, phrases
from recipes.pocket_split.played import conversations, lessons
from recipes.pocket_split.samples import (
    CORRECT,
    WRONG,
    Members,
    SplitExamples,
    carried_out,
    slip_of,
)

MANY = 12
GOLD = {name: question.answer for name, question in questions()}


def _requests(dialogue: Dialogue) -> Iterator[str]:
    """What the model was asked, of each of its replies."""
    for at, message in enumerate(dialogue.messages):
        if message["role"] == "assistant":
            yield _key(dialogue.messages[:at], dialogue.tools)


def _key(messages: Any, tools: Any) -> str:
    return json.dumps([messages, list(tools or [])], sort_keys=True)


def _prompts(agent: str) -> set[str]:
    found: set[str] = set()
    for pair, asked in drawn("val"):
        members = Members(pair.theme)
        for question in asked:
            problem, done = Problem("", question.text), carried_out(question)
            if agent == "reference_tools":
                dialogues = [members.alone(problem, done, question.answer)]
            else:
                dialogues = [
                    *map(members.worker, done),
                    members.planner(problem, done, question.answer),
                ]
                dialogues.append(members.critic(problem, done, question.answer, "CORRECT"))
            found.update(key for dialogue in dialogues for key in _requests(dialogue))
    return found


@pytest.mark.slow
def test_conversations_are_those_of_played_teams_and_agents(tmp_path: Path) -> None:
    PocketSplitTasks().load("val")
    for agent in ("reference_team", "reference_tools"):
        with ScriptedServer(script, token_ids=False) as model:
            command = [
                sys.executable,
                "-m",
                "harness",
                "eval",
                "--preset",
                "pocket-split",
                "--agent",
                agent,
                "--json",
            ]
            command += [
                "--limit",
                str(MANY),
                "--endpoint",
                model.base_url,
                "--runs-dir",
                str(tmp_path / agent),
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        prompts = _prompts(agent)
        asked = [_key(request.messages, request.body.get("tools")) for request in model.requests]
        assert len(asked) > 2 * MANY
        unlike = [key for key in asked if key not in prompts]
        assert not unlike, unlike[0]


@pytest.mark.slow
def test_agents_play_the_teacher_and_their_own_words_are_learned(tmp_path: Path) -> None:
    agents = ["langgraph_team", "autogen_team_idiomatic"]
    kept = tmp_path / "transcripts.jsonl"
    command = [
        "--on",
        "pocket_split",
        "--base",
        "pocket-split",
        "--agents",
        ",".join(agents),
        "--limit",
        "3",
    ]
    command += [
        "--transcripts",
        str(kept),
        "--steps",
        "1",
        "--workers",
        "1",
        "--out",
        str(tmp_path / "policy"),
    ]
    assert finetune(command) == 0
    played = read(kept)
    assert [sum(one.agent == agent for one in played) for agent in agents] == [
        6,
        6,
    ]  # of train, and of val
    assert all(one.answer == GOLD[one.task] for one in played)
    strict, own = (
        [
            conversation
            for one in played
            if one.agent == agent and one.task.startswith("val")
            for conversation in conversations(one)
        ]
        for agent in agents
    )
    assert {key for dialogue in strict for key in _requests(dialogue)} <= _prompts("langgraph_team")
    assert (
        len(own) == len(strict)
        and len({_key(*asked) for asked in map(_first, own)} & _prompts("langgraph_team")) == 3
    )
    manifest = json.loads((tmp_path / "policy" / "manifest.json").read_text())
    assert manifest["training"]["transcripts"] == 12 and set(agents) < set(
        manifest["measured"]["held_out"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["reference_team", "langgraph_team_idiomatic", "reference_tools"])
def test_a_played_slip_is_that_of_the_made_conversations(agent: str) -> None:
    jobs = [job for job in lessons(agent, "train", slips=1.0)[:24] if job.replies.slip]  # type: ignore[union-attr]
    assert len(jobs) >= 12
    by_id = {
        f"{pair.name}-{number}": (pair, one)
        for pair, asked in drawn("train")
        for number, one in enumerate(asked)
    }
    noticed = 0
    for job, one in zip(jobs, asyncio.run(play(agent, jobs)), strict=True):
        pair, question = by_id[one.task]
        slip = slip_of(pair, question)
        again = agent != "reference_tools" and job.replies.noticed  # type: ignore[union-attr]
        noticed += again
        assert slip is not None and one.answer == (question.answer if again else slip[1])
        if agent == "reference_team":
            members, problem = Members(pair.theme), Problem("", question.text)
            made = [members.planner(problem, *slip), *map(members.worker, slip[0])]
            made.append(members.critic(problem, *slip, WRONG if again else CORRECT))
            if again:
                done = carried_out(question)
                made += [
                    members.planner(members.again(problem, *slip, WRONG), done, question.answer)
                ]
                made += map(members.worker, done)
            assert {text_of(conversation) for conversation in conversations(one)} == {
                text_of(conversation) for conversation in made
            }
    assert agent == "reference_tools" or 0 < noticed < len(jobs)


def _first(dialogue: Dialogue) -> tuple[Any, Any]:
    at = next(at for at, message in enumerate(dialogue.messages) if message["role"] == "assistant")
    return dialogue.messages[:at], dialogue.tools


def test_slips_are_wrong_and_some_are_noticed() -> None:
    source, plain = SplitExamples(1, 0.5), SplitExamples(1, 0.0)
    answers = [
        dialogue.messages[-1]["content"] for index in range(40) for dialogue in source(index)
    ]
    assert answers.count("CORRECT") > 100 and sum(one.startswith("WRONG") for one in answers) > 10
    plainly = [dialogue for index in range(40) for dialogue in plain(index)]
    assert not any(
        str(dialogue.messages[-1]["content"]).startswith("WRONG") for dialogue in plainly
    )
    assert {member_of(dialogue) for dialogue in plainly} == {"planner", "worker", "critic", "alone"}
    assert list(source(3)) == list(SplitExamples(1, 0.5)(3)) != list(SplitExamples(2, 0.5)(3))


def test_every_reply_is_learnt_after_its_prompt() -> None:
    for dialogue in SplitExamples(1, 0.5)(0):
        replies = [reply for _, reply in asked_and_said(dialogue)]
        assert len(replies) == sum(message["role"] == "assistant" for message in dialogue.messages)
        assert all(
            prompt.endswith("<|im_start|>assistant\n") for prompt, _ in asked_and_said(dialogue)
        )
    assert len(phrases()) == len(set(phrases()))
    assert set(phrases(["a tool"])) == {"a tool", *phrases()}
