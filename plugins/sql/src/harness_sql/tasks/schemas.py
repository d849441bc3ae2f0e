"""What task sets over SQLite databases show of them: a schema as text, made once for all questions on a database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from harness.records import Task
from harness_sql.sqlite.environment import database_of
from harness_sql.sqlite.schema import schema_text


class WithSchemas:
    """A task set whose context is the schema of a task's database.

    Args:
        schema_chars: The longest schema text, in characters.
        style: `create` (CREATE statements) or `compact` (one line a table).
        sample_rows: Rows of each table shown below it.
    """

    def __init__(
        self,
        schema_chars: int,
        style: Literal["create", "compact"] = "compact",
        sample_rows: int = 0,
    ) -> None:
        self.schema_chars = schema_chars
        self.style = style
        self.sample_rows = sample_rows
        self._schemas: dict[str, str] = {}

    def context(self, task: Task) -> Mapping[str, str]:
        return {"schema": self.schema(task)}

    def schema(self, task: Task) -> str:
        """The schema text of a task's database, cut to `schema_chars`."""
        path = database_of(task)
        if path not in self._schemas:
            shown: dict[str, Any] = {
                "style": self.style,
                "sample_rows": self.sample_rows,
                **self.shown_besides(path),
            }
            self._schemas[path] = schema_text(path, limit_chars=self.schema_chars, **shown)
        return self._schemas[path]

    def shown_besides(self, path: str) -> Mapping[str, Any]:
        """Further arguments of `schema_text` for a database."""
        return {}
