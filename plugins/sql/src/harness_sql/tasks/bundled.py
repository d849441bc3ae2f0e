"""Task sets bundled with the package: files with hashes in a manifest, databases from SQL text."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from harness.config import cache_dir
from harness.errors import TaskSetError
from harness_sql.sqlite.databases import fingerprint

log = logging.getLogger(__name__)

# Change counters and the SQLite version that wrote a database file. Fixed values make hashes
# reproducible.
_HEADER = {24: bytes(4), 92: bytes(4), 96: (3040001).to_bytes(4, "big")}


class Built:
    """Database files of one task set, built from scripts.

    Args:
        task_set: Name of the task set.
    """

    def __init__(self, task_set: str) -> None:
        self._task_set = task_set
        self._built: dict[str, tuple[Path, str]] = {}

    def database(self, name: str, script: str, path: Path) -> Path:
        """Build a database from its script if it is missing or has changed, and return its file.

        Raises:
            TaskSetError: The folder cannot be written.
        """
        known = self._built.get(name)
        if known is None or fingerprint(path) != known[1]:
            build_database(script, path, self._task_set)
            self._built[name] = (path, fingerprint(path))
        return path

    def changed(self) -> list[str]:
        """Return names of databases with files that changed after `database` returned them."""
        names = []
        for name, (path, digest) in self._built.items():
            if fingerprint(path) != digest:
                names.append(name)
        return sorted(names)


class Bundle(Built):
    """The files of one task set.

    Args:
        task_set: Name of the task set.
        data: The folder of the files and of `manifest.json`, which has their hashes.
    """

    def __init__(self, task_set: str, data: Path) -> None:
        super().__init__(task_set)
        self._data = data
        try:
            self.manifest: dict[str, Any] = json.loads(
                (data / "manifest.json").read_text(encoding="utf-8")
            )
        except (OSError, ValueError) as error:
            raise self._damaged(str(error)) from error

    def read(self, name: str) -> bytes:
        """Return a file's content.

        Raises:
            TaskSetError: It does not match the manifest.
        """
        try:
            content = (self._data / name).read_bytes()
        except OSError as error:
            raise self._damaged(str(error)) from error
        if hashlib.sha256(content).hexdigest() != self.manifest["sha256"][name]:
            raise self._damaged(f"{name!r} has another hash")
        return content

    def built(self, folder: str | None, source: str) -> Path:
        """Return the folder of databases built from a file, by default in the user's cache."""
        home = Path(folder).expanduser() if folder else cache_dir() / self._task_set
        return home / str(self.manifest["sha256"][source])[:16]

    def _damaged(self, why: str) -> TaskSetError:
        return TaskSetError(f"task set {self._task_set!r} is damaged: {why}. Reinstall the package")


def build_database(script: str, path: Path, task_set: str) -> None:
    """Build one database file from its script. Safe for concurrent processes and readers.

    An existing file with the right content is kept. Other databases in its folder are removed,
    because
    verdicts would include them.

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
            log.warning("%s has changed since it was built, so it is built again", path)
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
            f"task set {task_set!r} cannot build its databases in {str(path.parent)!r}: {error}. "
            "Set HARNESS_CACHE_DIR, or the option cache_dir, to a folder that can be written"
        ) from error
