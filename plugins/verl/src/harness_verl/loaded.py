"""Whether the modules that a process has imported are still what their files say."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


class Loaded:
    """The files that this process has imported, and the folders where packages are installed, as they were."""

    def __init__(self) -> None:
        self._began = time.time_ns()
        self._seen: dict[str, int] = {}

    def note(self) -> None:
        """Look at everything that is imported now."""
        files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        folders = {
            path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")
        }
        self._seen = {path: _changed(path) for path in files | folders if path}

    def unchanged(self) -> bool:
        """Whether all of them are as they were when this process began, and none is of a later time.

        But for what an import compiled: on a machine's first start Triton's launcher.
        """
        return all(
            _changed(path) == then and (then < self._began or path.endswith(".so"))
            for path, then in self._seen.items()
        )


def _changed(path: str) -> int:
    """When a file was changed last, in nanoseconds; 0 where there is none."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
