"""Task sets whose data ship with the package: files with hashes in a manifest, databases built from SQL text."""

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

# Counters of changes and the SQLite version that wrote a database file; fixed, so that hashes agree.
_HEADER = {24: bytes(4), 92: bytes(4), 96: (3040001).to_bytes(4, "big")}


class Built:
    """Database files of one task set, each what its script gives.

    Args:
        task_set: Its name.
    """

    def __init__(self, task_set: str) -> None:
        self._task_set = task_set
        self._built: dict[str, tuple[Path, str]] = {}

    def database(self, name: str, script: str, path: Path) -> Path:
        """A database's file, which is what its script gives from here on until somebody changes it.

        Raises:
            TaskSetError: The folder cannot be written.
        """
        known = self._built.get(name)
        if known is None or fingerprint(path) != known[1]:
            build_database(script, path, self._task_set)
            self._built[name] = (path, fingerprint(path))
        return path

    def changed(self) -> list[str]:
        """Names of databases whose files are no longer what `database` gave."""
        return sorted(
            name for name, (path, digest) in self._built.items() if fingerprint(path) != digest
        )


class Bundle(Built):
    """The files of one task set.

    Args:
        task_set: Its name.
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
        """A file's content.

        Raises:
            TaskSetError: It is not what the manifest says.
        """
        try:
            content = (self._data / name).read_bytes()
        except OSError as error:
            raise self._damaged(str(error)) from error
        if hashlib.sha256(content).hexdigest() != self.manifest["sha256"][name]:
            raise self._damaged(f"{name!r} has another hash")
        return content

    def built(self, folder: str | None, source: str) -> Path:
        """The folder of the databases that a file's text gives, by default in the user's cache folder."""
        home = Path(folder).expanduser() if folder else cache_dir() / self._task_set
        return home / str(self.manifest["sha256"][source])[:16]

    def _damaged(self, why: str) -> TaskSetError:
        return TaskSetError(f"task set {self._task_set!r} is damaged: {why}. Reinstall the package")


def build_database(script: str, path: Path, task_set: str) -> None:
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
            f"task set {task_set!r} cannot build its databases in {str(path.parent)!r}: {error}. "
            "Set HARNESS_CACHE_DIR, or the option cache_dir, to a folder that can be written"
        ) from error
