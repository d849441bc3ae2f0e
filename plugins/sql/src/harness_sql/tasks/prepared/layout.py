"""How a published task set lies on disk, as it is distributed and as harness prepares it.

Databases are at `FOLDER/<db_id>/<db_id>.sqlite`; in the official archive and in the prepared folder alike.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.config import cache_dir

MANIFEST = "manifest.json"
REST = "dev_rest"
"""Split of a sampled part without its sample: to report on what no choice was made by."""


@dataclass(frozen=True, slots=True)
class Part:
    """One file of questions: its official name and the Parquet file that it becomes."""

    name: str
    official: str
    parquet: str
    folders: tuple[str, ...]
    """Where its databases are looked for, in order."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A task set's files.

    Attributes:
        name: The task set.
        title: What its authors call it.
        command: What prepares it.
        folders: Where databases lie.
        columns: Columns of the Parquet files and, for each, what the official files call it.
        optional: Columns that may be missing; they are empty then.
        variable: The environment variable that may name the prepared folder.
        sample: A part and the fixed sample of it that is written, too.
        as_is: Gold queries are executed as they stand, with DISTINCT.
        descriptions: The Parquet file of what tables and columns mean, where the official files say.
    """

    name: str
    title: str
    command: str
    parts: tuple[Part, ...]
    folders: tuple[str, ...]
    columns: Mapping[str, tuple[str, ...]]
    optional: frozenset[str] = frozenset()
    variable: str = ""
    sample: tuple[str, Part] | None = None
    as_is: bool = False
    descriptions: str = ""

    @property
    def parquets(self) -> tuple[str, ...]:
        """All Parquet files of questions."""
        return (
            *(part.parquet for part in self.parts),
            *((self.sample[1].parquet,) if self.sample else ()),
        )

    @property
    def sample_splits(self) -> dict[str, Part]:
        """The splits that a sample brings: itself, also as `val`, and the rest of its part; none without a sample."""
        if self.sample is None:
            return {}
        name, sample = self.sample
        whole = next(part for part in self.parts if part.name == name)
        return {sample.name: sample, "val": sample, REST: whole}

    @property
    def marks(self) -> frozenset[str]:
        """Names of files by which a source is known."""
        return frozenset(name for part in self.parts for name in (part.official, part.parquet))

    def default_folder(self) -> Path:
        """What the environment variable names, or a folder in the user's cache."""
        named = os.environ.get(self.variable) if self.variable else None
        return Path(named).expanduser() if named else cache_dir() / self.name


def database_file(db_id: str, folder: str) -> str:
    """Path of a database, relative to the data folder."""
    return f"{folder}/{db_id}/{db_id}.sqlite"
