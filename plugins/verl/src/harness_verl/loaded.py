"""Check whether the files of a process's imported modules have changed."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


class Loaded:
    """The files that this process has imported and its package folders, with their times."""

    def __init__(self) -> None:
        self._began = time.time_ns()
        self._seen: dict[str, int] = {}

    def note(self) -> None:
        """Record the times of everything that is imported now."""
        # Copy the list, because another thread may import modules meanwhile.
        modules = list(sys.modules.values())
        paths = {getattr(module, "__file__", None) for module in modules}
        # A folder's time shows packages that are added to it or removed.
        for path in sys.path:
            if Path(path).name in ("site-packages", "dist-packages"):
                paths.add(path)
        self._seen = {}
        for seen in paths:
            # Built-in modules have no file.
            if seen:
                self._seen[seen] = _changed(seen)

    def unchanged(self) -> bool:
        """Return whether all files are as they were when this process began, and none is newer.

        Files that an import compiles are excepted, such as Triton's launcher on a machine's first
        start.
        """
        return all(
            _changed(path) == then and (then < self._began or path.endswith(".so"))
            for path, then in self._seen.items()
        )


def _changed(path: str) -> int:
    """Return when a file was changed last, in nanoseconds; 0 where it does not exist."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
