"""Transcripts of teams and single agents, played against a teacher who knows every plan.

What a framework says of a tool, and what it hands on, differs from the program's own words, and a small policy notices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from harness.config import load_config
from harness.rollout.request import RolloutRequest
from harness_teams.tasks import PocketSplitTasks
from harness_teams.teacher import script
from recipes.finetune.play import Job, Transcript, dealt
from recipes.finetune.rows import text_of
from recipes.medical.samples import Dialogue
from recipes.pocket_split.samples import SplitExamples

EACH = 24
"""Played conversations of an index; as many as are made."""


def lessons(agent: str, split: Literal["train", "val"], limit: int | None = None) -> list[Job]:
    """The tasks of a split, or the first of them, for one agent."""
    config, task_set = load_config("pocket-split", agent=agent), PocketSplitTasks()
    return [
        Job(RolloutRequest.build(task, task_set.context(task), config, split), script, {})
        for task in task_set.load(split)[:limit]
    ]


def conversations(transcript: Transcript) -> list[Dialogue]:
    """What each member said: calls that go on from one another are one conversation."""
    found: list[Dialogue] = []
    for call in transcript.calls:
        asked = text_of(Dialogue(call.tools, call.messages))
        whole = Dialogue(call.tools, [*call.messages, call.reply])
        at = next((at for at, one in enumerate(found) if asked.startswith(text_of(one))), len(found))
        found[at : at + 1] = [whole]
    return found


@dataclass(frozen=True, slots=True)
class PlayedExamples:
    """Made and played conversations of one seed, as many of each, as a source of training data.

    Attributes:
        file: A pickled list of `Dialogue`, as many of each agent.
    """

    made: SplitExamples
    file: str

    def __call__(self, index: int) -> Iterator[Dialogue]:
        yield from self.made(index)
        yield from dealt(self.file, self.made.seed, index, EACH)
