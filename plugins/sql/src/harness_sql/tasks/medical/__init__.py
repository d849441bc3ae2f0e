"""The task set `medical`: Chinese questions with answers in words, on invented, bundled data."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from harness.contracts.tasks import check_split
from harness.records import Task
from harness_sql.sqlite.environment import DATABASE, GOLD_IS, TOOL
from harness_sql.sqlite.schema import schema_text
from harness_sql.tasks.bundled import Bundle

DATA = Path(__file__).parent / "data"
SPLITS = ("train", "val")


class MedicalTasks:
    """The bundled task set.

    Args:
        cache_dir: Folder in which to build the database file; by default `harness/medical` in the
            user's
            cache folder.
        schema_chars: Maximum length of the schema text, in characters.
        tool: Name of the tool that queries the database.
    """

    name = "medical"

    def __init__(
        self,
        cache_dir: str | None = None,
        schema_chars: PositiveInt = 4000,
        tool: str = "query_database_by_sql",
    ) -> None:
        self.schema_chars = schema_chars
        self.tool = tool
        self._bundle = Bundle(self.name, DATA)
        self._database: dict[str, Any] = json.loads(self._bundle.read("database.json"))
        self.path = self._bundle.built(cache_dir, "database.json") / "medical.sqlite"

    def load(self, split: str) -> Sequence[Task]:
        """Return all tasks of `train` or `val`, in the order of the file.

        Raises:
            TaskSetError: The split does not exist, or bundled files are damaged.
        """
        check_split(self.name, split, SPLITS)
        import pyarrow.parquet

        content = io.BytesIO(self._bundle.read(f"{split}.parquet"))
        rows = pyarrow.parquet.read_table(content).to_pylist()
        self._build()
        return [self._task(row, split) for row in rows]

    def _task(self, row: Mapping[str, Any], split: str) -> Task:
        return Task(
            id=row["id"],
            task_set=self.name,
            split=split,
            question=row["question"],
            gold=row["answer"],
            cluster=row["cluster"],
            difficulty=row["difficulty"],
            data={
                DATABASE: str(self.path),
                GOLD_IS: "answer",
                TOOL: self.tool,
                "facts": row["facts"],
                "kind": row["kind"],
            },
        )

    def context(self, task: Task) -> Mapping[str, str]:
        return {"schema": self.schema}

    @cached_property
    def schema(self) -> str:
        """Return the compact schema text with descriptions of the columns."""
        self._build()
        notes = self._database["notes"]
        return schema_text(self.path, limit_chars=self.schema_chars, style="compact", notes=notes)

    def describe(self) -> Mapping[str, Any]:
        """Return counts, licence, options, and the hashes of questions and database."""
        manifest = self._bundle.manifest
        return {
            "name": self.name,
            "licence": manifest["licence"],
            "notice": manifest["notice"],
            "generator_seed": manifest["seed"],
            "counts": manifest["counts"],
            "sha256": manifest["sha256"],
            "options": {"schema_chars": self.schema_chars, "tool": self.tool},
        }

    def check(self) -> list[str]:
        """Return the database's name if it changed after its tasks were loaded."""
        return self._bundle.changed()

    def _build(self) -> None:
        self._bundle.database(self.path.name, self._database["script"], self.path)
