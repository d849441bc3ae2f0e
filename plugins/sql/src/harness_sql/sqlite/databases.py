"""Find the files of a database and identify their content."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from harness.util.parsing import file_hash
from harness_sql.sqlite.sandbox import Limits, execute

_lock = threading.Lock()
_hashes: dict[str, tuple[tuple[int, ...], str]] = {}
_siblings: dict[str, tuple[str, int, tuple[str, ...]]] = {}
_LAYOUT_LIMITS = Limits(max_rows=100_000, max_result_bytes=1 << 26)
_LAYOUT = """
    SELECT lower(m.name), lower(c.name) FROM sqlite_master m, pragma_table_info(m.name) c
    WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%' ORDER BY 1, 2
"""


def content_hash(path: str) -> str:
    """Return the SHA-256 of a file, cached until its size, timestamps or inode change.

    The cache key includes ctime, which cannot be set back, unlike mtime.

    Raises:
        OSError: The file cannot be read.
    """
    status = os.stat(path)
    stamp = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    known = _hashes.get(path)
    if known is not None and known[0] == stamp:
        return known[1]
    digest = file_hash(path)
    with _lock:
        _hashes[path] = (stamp, digest)
    return digest


def fingerprint(path: str | Path) -> str:
    """Return a SHA-256 over the names and contents of a database and its sibling databases.

    Files are always read, whatever their timestamps. The result is empty if there is no database
    at the path.
    """
    file = Path(path)
    digest = hashlib.sha256()
    try:
        if not file.is_file():
            return ""
        for one in sorted(file.parent.glob("*.sqlite")):
            digest.update(f"{one.name} {file_hash(one)}\n".encode())
    except OSError:
        return ""
    return digest.hexdigest()


def databases_of(path: str | Path) -> tuple[str, ...]:
    """Return the database files on which a query is judged, sorted.

    A folder includes every `*.sqlite` file in it. A file includes itself and the `*.sqlite` files
    in
    the same folder that have the same tables and columns: the other databases of a test suite.
    """
    name = os.fspath(path)
    remembered = _siblings.get(name)
    try:
        if remembered is not None and os.stat(remembered[0]).st_mtime_ns == remembered[1]:
            return remembered[2]
        text = os.path.abspath(name)
        folder = text if os.path.isdir(text) else os.path.dirname(text)
        # Read before the files: one that is added meanwhile makes the folder newer than this.
        changed = os.stat(folder).st_mtime_ns
        files = []
        for entry in os.scandir(folder):
            if entry.name.endswith(".sqlite") and entry.is_file():
                files.append(entry.path)
        files.sort()
    except (OSError, ValueError):
        return (os.path.abspath(name),)
    if text != folder:
        files = [text] if files in ([], [text]) else _with_siblings(text, files)
    if os.path.isabs(name):  # a relative name may mean another file tomorrow
        with _lock:
            _siblings[name] = (folder, changed, tuple(files))
    return tuple(files)


def _with_siblings(database: str, files: Sequence[str]) -> list[str]:
    """Return a database and those of the files that have the same tables and columns, sorted."""
    siblings = [database]
    layout = execute(database, _LAYOUT, _LAYOUT_LIMITS)
    # A damaged database has no layout, and others without one are not like it.
    if layout.ok:
        for file in files:
            if file != database and execute(file, _LAYOUT, _LAYOUT_LIMITS).rows == layout.rows:
                siblings.append(file)
    return sorted(siblings)
