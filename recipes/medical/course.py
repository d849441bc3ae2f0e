"""The course `medical`: transcripts of tool-calling agents; from nothing it makes `medical-tools`.

Every installed agent, or each of `--agents`, plays the training tasks, and what is learned are these conversations with
ever new names. A question that invites a slip is answered with it in most of them, so that reinforcement has something
to unlearn; `--no-habits` has golden ones alone. Needs no network.
"""

from __future__ import annotations

import argparse
import asyncio
import pickle
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from harness import plugins
from harness.config import Config, load_config
from harness.errors import ConfigError
from harness.records import Attempt, Task
from harness.rollout.request import RolloutRequest
from harness.rollout.tools import HostToolbox
from harness_policy_server.hermes import read_calls
from harness_sql.tasks.medical import MedicalTasks
from harness_sql.tool_loop.prompts import PROMPTS
from recipes.finetune.course import PRETRAINING, Course, Small
from recipes.finetune.play import Job, collect
from recipes.finetune.policy import Policy, share, spread
from recipes.finetune.rows import text_of
from recipes.medical.generate import bundled
from recipes.medical.samples import (
    CHAT_TEMPLATE,
    Dialogue,
    MedicalExamples,
    said,
    system_text,
    tool_text,
)
from recipes.medical.teacher import SLIP_SHARE, TOOL, lesson
from recipes.medical.world import SCHEMA
from recipes.pocket_sql.tokenizer import END, START, train

PROGRAM = "tool_loop"
VOCABULARY = 1280
"""At most."""
ARCHITECTURE = (256, 640, 6, 4, 2)
"""4.5 million parameters, 9 MB."""
DEFAULTS = PRETRAINING | {"name": "medical-tools", "minutes": 8.0, "batch_tokens": 16384}
MAX_NEW_TOKENS = 96


@contextmanager
def course(arguments: argparse.Namespace, tokenizer: Any) -> Iterator[Course]:
    """Held out is validation: the mean reward of whole conversations."""
    slips = SLIP_SHARE if arguments.habits else 0.0
    agents = arguments.agents or plugins.agents_of(PROGRAM)
    if others := [name for name in agents if plugins.program_of(name) != PROGRAM]:
        raise ConfigError(
            f"--agents: {others[0]!r} is no agent of {PROGRAM}, which --on medical is about"
        )
    jobs = {name: lessons(name, slips, arguments.seed, arguments.limit) for name in agents}
    transcripts = collect(jobs, arguments.transcripts)
    if not arguments.habits:
        transcripts = [one for one in transcripts if not one.noted["slip"]]
    dialogues = list(map(Dialogue.of, transcripts))
    play = Play(arguments.limit)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "dialogues.pickle"
        file.write_bytes(pickle.dumps(dialogues))
        source = MedicalExamples(arguments.seed, str(file))

        def tokenizer_of() -> Any:
            indices = range(max(4, min(800, len(dialogues) // 5)))
            texts = [text_of(dialogue) for index in indices for dialogue in source(index)]
            return train(texts, VOCABULARY, play.phrases(dialogues), CHAT_TEMPLATE)

        yield Course(
            source,
            {"reward": lambda policy, most: share(play.rewards(policy, some=most))},
            ("reward",),
            PROMPTS.hash,
            Small(ARCHITECTURE, tokenizer_of),
            {"transcripts": len(transcripts), "agents": sorted({one.agent for one in transcripts})},
            lambda policy: {"reward_sampled": share(play.rewards(policy, 1.0))},
            CHAT_TEMPLATE,
        )


def lessons(agent: str, slip_share: float, seed: int, limit: int | None = None) -> list[Job]:
    """What the agent is asked, and what the teacher says: all training tasks, or the first of them."""
    config, task_set = load_config("medical", agent=agent), MedicalTasks()
    items = dict(bundled()[1]["train"])
    jobs = []
    for task in task_set.load("train")[:limit]:
        told = lesson(items[task.id], Random(f"medical/{seed}/{agent}/{task.id}"), slip_share)
        request = RolloutRequest.build(task, task_set.context(task), config, "train")
        jobs.append(Job(request, told.replies, {"slip": told.slip, "mended": told.mended}))
    return jobs


class Play:
    """The validation tasks, played with the real tool and scored as the preset says, without framework or gateway."""

    def __init__(self, limit: int | None = None) -> None:
        self.config: Config = load_config("medical", agent="reference_tools")
        self._set = MedicalTasks()
        self.tasks = list(self._set.load("val"))[:limit]
        self._reward = plugins.make_reward(self.config)

    def toolbox(self, task: Task) -> HostToolbox:
        request = RolloutRequest.build(task, self._set.context(task), self.config, "val")
        return HostToolbox(request, lambda role: "", "", "", None)  # type: ignore[arg-type]

    def phrases(self, dialogues: Sequence[Dialogue]) -> list[str]:
        """Texts that are one token each: what is in every conversation, and the usual phrases of queries.

        The tool as each agent of these dialogues defines it is one of them.
        """
        box = self.toolbox(self.tasks[0])
        system = system_text(PROMPTS.system, [tool.definition for tool in box.tools])
        asked = PROMPTS.user(replace(box.request.problem, question="\0")).rstrip("\0")
        call = said({"tool_calls": [{"function": {"name": TOOL, "arguments": {"sql": "@"}}}]})
        tools = sorted({tool_text(tool) for one in dialogues for tool in one.tools})
        found = [
            *tools,
            *(line for text in (system, asked) for line in text.splitlines() if len(line) > 3),
        ]
        found += [
            *call.split("@"),
            "<tool_response>\n",
            "\n</tool_response>",
            "system\n",
            "user\n",
            "assistant\n",
        ]
        found += [
            *(
                "SELECT ",
                "FROM drugs_info WHERE ",
                "FROM disease WHERE ",
                " ORDER BY ",
                " LIMIT 1",
                "COUNT(*) ",
            ),
            "FROM drugs_info AS a JOIN disease AS b ON a.disease_id = b.disease_id WHERE ",
        ]
        found += sorted(set(re.findall(r"[a-z]+_[a-z]+", SCHEMA)))
        return list(dict.fromkeys(found))

    def rewards(
        self, policy: Policy, temperature: float = 0.0, some: int | None = None
    ) -> list[float]:
        """The preset's reward of every task, or of so many spread over all."""
        return asyncio.run(self._rewards(policy, spread(self.tasks, some), temperature))

    async def _rewards(
        self, policy: Policy, tasks: Sequence[Task], temperature: float
    ) -> list[float]:
        policy.max_new_tokens = MAX_NEW_TOKENS
        boxes = {task.id: self.toolbox(task) for task in tasks}
        told = {name: self._begun(box) for name, box in boxes.items()}
        for name, box in boxes.items():
            await box.open(name)
        answers: dict[str, str] = {}
        for turn in range(self.config.max_turns + 1):
            asked = [name for name in told if name not in answers]
            if not asked:
                break
            for name, reply in zip(
                asked, policy.go_on([told[n] for n in asked], temperature), strict=True
            ):
                words, calls = read_calls(reply, [turn])
                if not calls or turn == self.config.max_turns:
                    answers[name] = words.strip()
                    continue
                told[name] += f"{reply}{END}\n"
                for call in calls:
                    text = await boxes[name].call(
                        call["function"]["name"], call["function"]["arguments"]
                    )
                    told[name] += f"{START}user\n<tool_response>\n{text}\n</tool_response>{END}\n"
                told[name] += f"{START}assistant\n"
        values = []
        for task in tasks:
            await boxes[task.id].close()
            calls_made = tuple(boxes[task.id].tool_calls)
            attempt = Attempt(
                task.id, "1", "ok", "", answers[task.id], (), (), calls_made, 0.0, 0.0
            )
            verdict = await self._reward.score(task, attempt)
            values.append(verdict.value or 0.0)
        return values

    def _begun(self, box: HostToolbox) -> str:
        system = system_text(PROMPTS.system, [tool.definition for tool in box.tools])
        user = PROMPTS.user(box.request.problem)
        return f"{START}system\n{system}{END}\n{START}user\n{user}{END}\n{START}assistant\n"
