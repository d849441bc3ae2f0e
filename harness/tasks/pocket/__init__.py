"""Task set `pocket`: small generated SQLite databases in Spider's layout, bundled with the package.

The questions ship as JSON lines and the databases as SQL text; the database files are built on first use.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import TaskSetError
from harness.records import Task

DATA = Path(__file__).parent / "data"
SPLITS = ("train", "val")

# Bytes 96 to 99 of a database file name the SQLite version that wrote it; fixed, so that hashes agree.
_VERSION_OFFSET, _VERSION = 96, (3040001).to_bytes(4, "big")


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
                db_id=row["db_id"],
                db_path=paths[row["db_id"]],
                gold=row["query"],
                difficulty=row["difficulty"],
                extra={"kind": row["kind"], "slip": row["slip"]},
            )
            for row in rows
        ]

    def schema(self, task: Task) -> str:
        """The compact schema text of a task's database."""
        from harness.sql.schema import schema_text

        if task.db_path not in self._schemas:
            self._schemas[task.db_path] = schema_text(task.db_path, limit_chars=self.schema_chars, style="compact")
        return self._schemas[task.db_path]

    def describe(self) -> Mapping[str, Any]:
        """Counts, licence, options, and the hashes of questions and databases."""
        return {
            "name": self.name,
            "licence": self._manifest["licence"],
            "generator_seed": self._manifest["seed"],
            "counts": self._manifest["counts"],
            "sha256": self._manifest["sha256"],
            "databases": {
                db_id: hashlib.sha256(script.encode()).hexdigest() for db_id, script in self._scripts.items()
            },
            "options": {"schema_chars": self.schema_chars},
        }

    def _database(self, db_id: str) -> Path:
        path: Path = self.root / "database" / db_id / f"{db_id}.sqlite"
        if not path.exists():
            build_database(self._scripts[db_id], path)
        return path


def build_database(script: str, path: Path) -> None:
    """Build one database file; several processes may do so at once, and readers never see half a file.

    Raises:
        TaskSetError: The folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".building")
        os.close(handle)
        try:
            connection = sqlite3.connect(name, isolation_level=None)
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("PRAGMA page_size = 4096")
            connection.executescript("BEGIN;\n" + script + "COMMIT;\n")
            connection.close()
            with open(name, "r+b") as file:
                file.seek(_VERSION_OFFSET)
                file.write(_VERSION)
            os.chmod(name, 0o644)
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
