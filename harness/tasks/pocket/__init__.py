"""Task set `pocket`: small generated SQLite databases in Spider's layout, bundled with the package.

The questions ship as JSON lines and the databases as SQL text. The database files are built on first use; one that is
no longer what its text gives is built anew when its tasks are loaded.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.environments.sql.databases import fingerprint
from harness.environments.sql.environment import DATABASE, database_of
from harness.errors import TaskSetError
from harness.records import Task

log = logging.getLogger(__name__)

DATA = Path(__file__).parent / "data"
SPLITS = ("train", "val")

# Counters of changes and the SQLite version that wrote a database file; fixed, so that hashes agree.
_HEADER = {24: bytes(4), 92: bytes(4), 96: (3040001).to_bytes(4, "big")}


class PocketTasks:
    """The bundled task set.

    Args:
        cache_dir: Where database files are built; by default `harness/pocket` in the user's cache folder.
        schema_chars: The longest schema text, in characters.
    """

    name = "pocket"

    def __init__(self, cache_dir: str | None = None, schema_chars: int = 4000) -> None:
        self.schema_chars = schema_chars
        self._manifest = _read_manifest()
        self._scripts: dict[str, str] = json.loads(_verified("databases.json", self._manifest))
        version = self._manifest["sha256"]["databases.json"][:16]
        self.root = (Path(cache_dir).expanduser() if cache_dir else _cache_root()) / version
        self._schemas: dict[str, str] = {}
        self._loaded: dict[str, tuple[Path, str]] = {}

    def load(self, split: str) -> Sequence[Task]:
        """All tasks of `train` or `val`, in the order of the file.

        Raises:
            TaskSetError: The split does not exist, or bundled files are damaged.
        """
        if split not in SPLITS:
            raise TaskSetError(f"task set 'pocket' has no split {split!r}. Use one of: {', '.join(SPLITS)}")
        rows = [json.loads(line) for line in _verified(f"{split}.jsonl", self._manifest).splitlines()]
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

    def context(self, task: Task) -> Mapping[str, str]:
        return {"schema": self.schema(task)}

    def schema(self, task: Task) -> str:
        """The compact schema text of a task's database."""
        from harness.environments.sql.schema import schema_text

        if database_of(task) not in self._schemas:
            self._schemas[database_of(task)] = schema_text(
                database_of(task), limit_chars=self.schema_chars, style="compact"
            )
        return self._schemas[database_of(task)]

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
            build_database(self._scripts[db_id], path)
            self._loaded[db_id] = (path, fingerprint(path))
        return path


def build_database(script: str, path: Path) -> None:
    """Make one file what its script gives; several processes may do so at once, and readers never see half a file.

    A file that already is stays as it is. Other databases beside it go, since verdicts would be on them, too.

    Raises:
        TaskSetError: The folder cannot be written.
    """
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("PRAGMA page_size = 4096")
    connection.executescript("BEGIN;\n" + script + "COMMIT;\n")
    content = bytearray(connection.serialize())
    connection.close()
    for offset, value in _HEADER.items():
        content[offset : offset + 4] = value
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for stranger in path.parent.glob("*.sqlite"):
            if stranger != path:
                log.warning("%s does not belong there and is removed", stranger)
                stranger.unlink(missing_ok=True)
        if path.is_file():
            if path.read_bytes() == content:
                return
            log.warning("%s has changed since it was built, so it is built anew", path)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".building")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.chmod(name, 0o444)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise TaskSetError(
            f"task set 'pocket' cannot build its databases in {str(path.parent)!r}: {error}. "
            "Set the option cache_dir to a folder that can be written"
        ) from error


def _cache_root() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "harness" / "pocket"


def _read_manifest() -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((DATA / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TaskSetError(f"task set 'pocket' is damaged: {error}. Reinstall the package") from error
    return manifest


def _verified(name: str, manifest: Mapping[str, Any]) -> str:
    try:
        data = (DATA / name).read_bytes()
    except OSError as error:
        raise TaskSetError(f"task set 'pocket' is damaged: {error}. Reinstall the package") from error
    if hashlib.sha256(data).hexdigest() != manifest["sha256"][name]:
        raise TaskSetError(f"task set 'pocket' is damaged: {name!r} has another hash. Reinstall the package")
    return data.decode()
