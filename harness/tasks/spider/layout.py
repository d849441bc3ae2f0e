"""How Spider lies on disk: official, as agent-lightning's example prepares it, and as harness prepares it.

All three keep databases at `database/<db_id>/<db_id>.sqlite`, and those of the test questions in
`test_database/` where there is one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

MANIFEST = "manifest.json"
FOLDERS = ("database", "test_database")
ENVIRONMENT = "VERL_SPIDER_DATA_DIR"


@dataclass(frozen=True, slots=True)
class Part:
    """One file of questions: its official name and the Parquet file that it becomes."""

    name: str
    official: str
    parquet: str
    folders: tuple[str, ...]
    """Where its databases are looked for, in order."""


PARTS = (
    Part("train", "train_spider.json", "train_spider.parquet", ("database",)),
    Part("train_others", "train_others.json", "train_others.parquet", ("database",)),
    Part("dev", "dev.json", "test_dev.parquet", ("test_database", "database")),
)
DEV_500 = Part("dev_500", "", "test_dev_500.parquet", ("test_database", "database"))


def default_folder() -> Path:
    """`$VERL_SPIDER_DATA_DIR`, or `harness/spider` in the user's cache folder."""
    named = os.environ.get(ENVIRONMENT)
    if named:
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "harness" / "spider"


def database_file(db_id: str, folder: str) -> str:
    """Path of a database, relative to the data folder."""
    return f"{folder}/{db_id}/{db_id}.sqlite"
