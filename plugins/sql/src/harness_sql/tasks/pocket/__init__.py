"""The task set `pocket`: small generated SQLite databases in Spider's layout, bundled."""

from __future__ import annotations

from pathlib import Path

from harness_sql.tasks.generated import GeneratedTasks

DATA = Path(__file__).parent / "data"


class PocketTasks(GeneratedTasks):
    """The bundled task set.

    Args:
        cache_dir: Folder in which to build database files; by default `harness/pocket` in the
            user's
            cache folder.
        schema_chars: Maximum length of the schema text, in characters.
    """

    name = "pocket"
    splits = ("train", "val")
    data = DATA
