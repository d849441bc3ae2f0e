"""The task set `pocket_probe`: bundled questions that depend on how values are stored.

Only execution shows how they are stored.
"""

from __future__ import annotations

from pathlib import Path

from harness_sql.tasks.generated import GeneratedTasks

DATA = Path(__file__).parent / "data"


class PocketProbeTasks(GeneratedTasks):
    """The bundled task set. Its schema text has names and types of columns, but no values.

    Args:
        cache_dir: Folder in which to build database files; by default `harness/pocket_probe` in the
            user's cache folder.
        schema_chars: Maximum length of the schema text, in characters.
    """

    name = "pocket_probe"
    splits = ("train", "dev", "test")
    data = DATA
