"""Task sets that a generator made and the package bundles: questions as JSON lines, databases as SQL text.

The database files are built on first use; one that is no longer what its text gives is built anew when its tasks are
loaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from harness.records import Task
from harness.tasks import check_split
from harness_sql.sqlite.environment import DATABASE
from harness_sql.tasks.bundled import Bundle
from harness_sql.tasks.schemas import WithSchemas

_TASK = {"id", "db_id", "question", "query", "difficulty"}
"""What a row says of a task itself; the rest is of interest to statistics alone."""


class GeneratedTasks(WithSchemas):
    """A generated task set over SQLite databases in Spider's layout.

    Args:
        cache_dir: Where database files are built; by default in the user's cache folder, under the task set's name.
        schema_chars: The longest schema text, in characters.
    """

    name: str
    splits: tuple[str, ...]
    data: Path
    """The folder of the bundled files."""

    def __init__(self, cache_dir: str | None = None, schema_chars: PositiveInt = 4000) -> None:
        super().__init__(schema_chars)
        self._bundle = Bundle(self.name, self.data)
        self._manifest = self._bundle.manifest
        self._scripts: dict[str, str] = json.loads(self._bundle.read("databases.json"))
        self.root = self._bundle.built(cache_dir, "databases.json")

    def load(self, split: str) -> Sequence[Task]:
        """All tasks of a split, in the order of the file.

        Raises:
            TaskSetError: The split does not exist, or bundled files are damaged.
        """
        check_split(self.name, split, self.splits)
        rows = [
            json.loads(line) for line in self._bundle.read(f"{split}.jsonl").decode().splitlines()
        ]
        paths = {
            db_id: str(self._database(db_id))
            for db_id in dict.fromkeys(row["db_id"] for row in rows)
        }
        return [
            Task(
                id=row["id"],
                task_set=self.name,
                split=split,
                question=row["question"],
                gold=row["query"],
                cluster=row["db_id"],
                difficulty=row["difficulty"],
                data={
                    DATABASE: paths[row["db_id"]],
                    **{key: value for key, value in row.items() if key not in _TASK},
                },
            )
            for row in rows
        ]

    def describe(self) -> Mapping[str, Any]:
        """Counts, licence, options, and the hashes of questions and databases."""
        return {
            "name": self.name,
            "licence": self._manifest["licence"],
            "generator_seed": self._manifest["seed"],
            "counts": self._manifest["counts"],
            "sha256": self._manifest["sha256"],
            # Of the text of each: `load` sees to it that the file is what the text gives.
            "databases": {
                db_id: hashlib.sha256(script.encode()).hexdigest()
                for db_id, script in self._scripts.items()
            },
            "options": {"schema_chars": self.schema_chars},
        }

    def check(self) -> list[str]:
        """Databases whose files changed since their tasks were loaded."""
        return self._bundle.changed()

    def _database(self, db_id: str) -> Path:
        path = self.root / "database" / db_id / f"{db_id}.sqlite"
        return self._bundle.database(db_id, self._scripts[db_id], path)
