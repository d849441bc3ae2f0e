"""Random databases as a task set that any agent can play, so that no scaffold is taught on bundled databases alone.

Databases and questions are drawn as in `samples`, from a seed of their own. Beside them stand as many conversations
that are made, of shared prompts, about ever new databases: they teach how names are copied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.records import Task
from harness_sql.tasks.generated import GeneratedTasks
from recipes.finetune.rows import Conversation, Source
from recipes.pocket.generate import files_of
from recipes.pocket_probe.generate import draw, line_of
from recipes.pocket_probe.questions import Schema
from recipes.pocket_probe.samples import QUESTIONS, ProbeExamples, world_of

SPLIT = "random"
WORLDS = 300
"""Random databases that are played; of the ten questions drawn for each about seven are found."""
SEED = 2_000_000
"""Added to the seed, so that no played database is one of those that are made."""


def random_tasks(folder: Path, seed: int, most: int | None = None) -> Sequence[Task]:
    """Questions about random databases, whose files are built in a folder.

    Args:
        most: Questions at most.
    """
    rows: list[str] = []
    scripts: dict[str, str] = {}
    for index in range(WORLDS):
        if most is not None and len(rows) >= most:
            break
        world, rng = world_of(seed + SEED, index)
        db_id, schema = f"world_{index:03d}", Schema(world.domain.schema_text())
        scripts[db_id] = world.script
        for number in range(QUESTIONS):
            if (asked := draw(world, schema, rng, tries=8)) is not None:
                rows.append(line_of(world, db_id, number, *asked))
        world.close()
    counts = {SPLIT: Counter(databases=len(scripts), questions=len(rows))}
    for name, text in files_of(seed, {SPLIT: rows}, scripts, counts).items():
        (folder / name).write_text(text, encoding="utf-8")
    random = type(
        "RandomTasks",
        (GeneratedTasks,),
        {"name": "pocket_probe", "splits": (SPLIT,), "data": folder},
    )
    return list(random(cache_dir=str(folder)).load(SPLIT))[:most]


@dataclass(frozen=True, slots=True)
class BesideMade:
    """Played conversations, and before them those that are made of one index, about as many."""

    made: ProbeExamples
    played: Source

    def __call__(self, index: int) -> Iterator[Conversation]:
        yield from self.made(index)
        yield from self.played(index)
