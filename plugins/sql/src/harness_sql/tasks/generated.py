"""Generated task sets bundled with the package: questions as JSON lines, databases as SQL text.

Database files are built on first use. A file that differs from its SQL text is rebuilt when its
tasks are loaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from harness.contracts.tasks import check_split
from harness.records import Task
from harness_sql.sqlite.environment import DATABASE
from harness_sql.tasks.bundled import Bundle
from harness_sql.tasks.schemas import WithSchemas

_TASK = {"id", "db_id", "question", "query", "difficulty"}
"""Keys of a row that belong to a task. The others serve only statistics."""


class GeneratedTasks(WithSchemas):
    """A generated task set on SQLite databases in Spider's layout.

    Args:
        cache_dir: Folder in which to build database files; by default a folder with the task set's
            name
            in the user's cache folder.
        schema_chars: Maximum length of the schema text, in characters.
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
        """Return all tasks of a split, in the order of the file.

        Raises:
            TaskSetError: The split does not exist, or bundled files are damaged.
        """
        check_split(self.name, split, self.splits)
        lines = self._bundle.read(f"{split}.jsonl").decode().splitlines()
        paths: dict[str, str] = {}
        tasks: list[Task] = []
        for row in map(json.loads, lines):
            db_id = row["db_id"]
            # Making a database takes a while, so each one is made once, in the order of the file.
            if db_id not in paths:
                paths[db_id] = str(self._database(db_id))
            tasks.append(self._task(row, split, paths[db_id]))
        return tasks

    def _task(self, row: Mapping[str, Any], split: str, database: str) -> Task:
        data = {DATABASE: database}
        for key, value in row.items():
            if key not in _TASK:
                data[key] = value
        return Task(
            id=row["id"],
            task_set=self.name,
            split=split,
            question=row["question"],
            gold=row["query"],
            cluster=row["db_id"],
            difficulty=row["difficulty"],
            data=data,
        )

    def describe(self) -> Mapping[str, Any]:
        """Return counts, licence, options, and the hashes of questions and databases."""
        # Hashes of the SQL texts. `load` ensures that each file matches its text.
        databases = {}
        for db_id, script in self._scripts.items():
            databases[db_id] = hashlib.sha256(script.encode()).hexdigest()
        return {
            "name": self.name,
            "licence": self._manifest["licence"],
            "generator_seed": self._manifest["seed"],
            "counts": self._manifest["counts"],
            "sha256": self._manifest["sha256"],
            "databases": databases,
            "options": {"schema_chars": self.schema_chars},
        }

    def check(self) -> list[str]:
        """Return databases with files that changed after their tasks were loaded."""
        return self._bundle.changed()

    def _database(self, db_id: str) -> Path:
        path = self.root / "database" / db_id / f"{db_id}.sqlite"
        return self._bundle.database(db_id, self._scripts[db_id], path)
