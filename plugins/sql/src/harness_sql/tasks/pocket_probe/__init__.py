"""Task set `pocket_probe`: bundled questions that hang on how values are stored, which only execution shows."""

from __future__ import annotations

from pathlib import Path

from harness_sql.tasks.generated import GeneratedTasks

DATA = Path(__file__).parent / "data"


class PocketProbeTasks(GeneratedTasks):
    """The bundled task set. Its schema text has names and types of columns, and no values.

    Args:
        cache_dir: Where database files are built; by default `harness/pocket_probe` in the user's cache folder.
        schema_chars: The longest schema text, in characters.
    """

    name = "pocket_probe"
    splits = ("train", "dev", "test")
    data = DATA
