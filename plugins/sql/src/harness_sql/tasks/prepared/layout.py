"""File layouts of published task sets, as distributed and as prepared.

Databases are at `FOLDER/<db_id>/<db_id>.sqlite`, in the official archive and in the prepared
folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.config import cache_dir

MANIFEST = "manifest.json"
REST = "dev_rest"
"""Split of a sampled part without its sample, for results that no choice was based on."""


@dataclass(frozen=True, slots=True)
class Part:
    """One file of questions: its official name and that of the prepared Parquet file."""

    name: str
    official: str
    parquet: str
    folders: tuple[str, ...]
    """Folders in which to look for its databases, in order."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The files of a task set.

    Attributes:
        name: The task set.
        title: The authors' name for it.
        command: The command that prepares it.
        folders: Folders of databases.
        columns: Columns of the Parquet files, each with its names in the official files.
        optional: Columns that may be missing, and are then empty.
        variable: The environment variable for the prepared folder.
        sample: A part and a fixed sample of it that is also written.
        as_is: Whether gold queries are executed unchanged, with DISTINCT.
        descriptions: The Parquet file of descriptions of tables and columns, if there are any.
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
        names = tuple(part.parquet for part in self.parts)
        return (*names, self.sample[1].parquet) if self.sample else names

    @property
    def sample_splits(self) -> dict[str, Part]:
        """The splits of a sample, if any: itself (also as `val`) and the rest of its part."""
        if self.sample is None:
            return {}
        name, sample = self.sample
        whole = next(part for part in self.parts if part.name == name)
        return {sample.name: sample, "val": sample, REST: whole}

    @property
    def marks(self) -> frozenset[str]:
        """File names that identify a source."""
        names: set[str] = set()
        for part in self.parts:
            names |= {part.official, part.parquet}
        return frozenset(names)

    def default_folder(self) -> Path:
        """Return the folder in the environment variable, or one in the user's cache."""
        named = os.environ.get(self.variable) if self.variable else None
        return Path(named).expanduser() if named else cache_dir() / self.name


def database_file(db_id: str, folder: str) -> str:
    """Return the path of a database, relative to the data folder."""
    return f"{folder}/{db_id}/{db_id}.sqlite"
