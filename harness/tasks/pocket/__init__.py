"""Task set `pocket`: small generated SQLite databases in Spider's layout, bundled with the package.

The questions ship as JSON lines and the databases as SQL text. The database files are built on first use; one that is
no longer what its text gives is built anew when its tasks are loaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from harness.environments.sql.databases import fingerprint
from harness.environments.sql.environment import DATABASE
from harness.errors import TaskSetError
from harness.records import Task
from harness.tasks.bundled import Bundle, build_database
from harness.tasks.schemas import WithSchemas

DATA = Path(__file__).parent / "data"
SPLITS = ("train", "val")


class PocketTasks(WithSchemas):
    """The bundled task set.

    Args:
        cache_dir: Where database files are built; by default `harness/pocket` in the user's cache folder.
        schema_chars: The longest schema text, in characters.
    """

    name = "pocket"

    def __init__(self, cache_dir: str | None = None, schema_chars: PositiveInt = 4000) -> None:
        super().__init__(schema_chars)
        self._bundle = Bundle(self.name, DATA)
        self._manifest = self._bundle.manifest
        self._scripts: dict[str, str] = json.loads(self._bundle.read("databases.json"))
        self.root = self._bundle.built(cache_dir, "databases.json")
        self._loaded: dict[str, tuple[Path, str]] = {}

    def load(self, split: str) -> Sequence[Task]:
        """All tasks of `train` or `val`, in the order of the file.

        Raises:
            TaskSetError: The split does not exist, or bundled files are damaged.
        """
        if split not in SPLITS:
            raise TaskSetError(f"task set 'pocket' has no split {split!r}. Use one of: {', '.join(SPLITS)}")
        rows = [json.loads(line) for line in self._bundle.read(f"{split}.jsonl").decode().splitlines()]
        paths = {db_id: str(self._database(db_id)) for db_id in dict.fromkeys(row["db_id"] for row in rows)}
        return [
            Task(
                id=row["id"],
                task_set=self.name,
                split=split,
                question=row["question"],
                gold=row["query"],
                cluster=row["db_id"],
                difficulty=row["difficulty"],
                data={DATABASE: paths[row["db_id"]], "kind": row["kind"], "slip": row["slip"]},
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
                db_id: hashlib.sha256(script.encode()).hexdigest() for db_id, script in self._scripts.items()
            },
            "options": {"schema_chars": self.schema_chars},
        }

    def check(self) -> list[str]:
        """Databases whose files changed since their tasks were loaded."""
        return sorted(db_id for db_id, (path, digest) in self._loaded.items() if fingerprint(path) != digest)

    def _database(self, db_id: str) -> Path:
        path: Path = self.root / "database" / db_id / f"{db_id}.sqlite"
        if db_id not in self._loaded or fingerprint(path) != self._loaded[db_id][1]:
            build_database(self._scripts[db_id], path, self.name)
            self._loaded[db_id] = (path, fingerprint(path))
        return path
