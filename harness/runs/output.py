"""Write the files that commands are given with `--out`."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from harness.errors import UserError
from harness.runs.folder import replace_text

STREAMS = (("/", "dev"), ("/", "proc"))
"""First parts of paths that name devices and open files."""


def write_output(path: Path, text: str) -> None:
    """Write a file whole or not at all, so that a full disk does not destroy an existing one.

    A link stays, and the file that it names is replaced. A device or a pipe is written directly.

    Raises:
        UserError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        target = Path(os.path.realpath(path))
        # `--out /dev/stdout` may be a file that others write to as well.
        is_stream = path.parts[:2] in STREAMS or target.parts[:2] in STREAMS
        if is_stream or (path.exists() and not path.is_file()):
            path.write_text(text, encoding="utf-8")
            return
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        replace_text(target, text)
        if mode is not None:
            target.chmod(mode)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}. Name another file with --out"
        ) from error
