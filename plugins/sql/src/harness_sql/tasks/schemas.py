"""Schema texts of task sets on SQLite databases, built once per database."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from harness.config import Config
from harness.errors import UserError
from harness.plugins import checked_options, load, task_set_spec
from harness.records import Task
from harness_sql.sqlite.environment import DATABASE, database_of
from harness_sql.sqlite.schema import schema_text

DEFAULT_SCHEMA_CHARS = 4000
"""Default maximum length of the schema text, in characters."""


class WithSchemas:
    """A task set that shows the schema of a task's database as context.

    Args:
        schema_chars: Maximum length of the schema text, in characters.
        style: `create` (CREATE statements) or `compact` (one line per table).
        sample_rows: Number of rows shown below each table.
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
        """Return the schema text of a task's database, cut to `schema_chars`."""
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
        """Return additional arguments of `schema_text` for a database."""
        return {}


def schema_of_database(path: Path, config: Config) -> str:
    """Return the schema text of any database in the format of a configuration's task set.

    Args:
        path: A SQLite database, which need not belong to the task set.

    Raises:
        PluginError: The task set is not installed or does not import.
        ConfigError: An option of the task set is unknown or does not fit.
        TaskSetError: The database is missing or damaged.
    """
    spec = task_set_spec(config.task.name)
    options = checked_options(spec, config.task.options, "task.options")
    target = load(spec)
    try:
        task_set = target(**options)
    except UserError:
        # The task set's questions are not on this machine. A custom question does not need them.
        task_set = None
    if not isinstance(task_set, WithSchemas):
        task_set = WithSchemas(**_declared(target, options))
    task = Task("question", spec.name, "", "", "", path.stem, data={DATABASE: str(path)})
    return task_set.schema(task)


def _declared(target: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `WithSchemas` among a task set's options and defaults."""
    parameters = inspect.signature(target).parameters
    shown: dict[str, Any] = {"schema_chars": DEFAULT_SCHEMA_CHARS}
    for name in ("schema_chars", "style", "sample_rows"):
        if name in options:
            shown[name] = options[name]
        elif name in parameters and parameters[name].default is not inspect.Parameter.empty:
            shown[name] = parameters[name].default
    return shown
