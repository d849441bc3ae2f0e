"""Write the files that commands are given with `--out`."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from harness.errors import UserError
from harness.runs.folder import replace_text


def write_output(path: Path, text: str) -> None:
    """Write a file whole or not at all, so that a full disk does not destroy an existing one.

    A link stays, and the file that it names is replaced. A device or a pipe is written directly.

    Raises:
        UserError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        target = Path(os.path.realpath(path))
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666
        replace_text(target, text, mode)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}. An existing file is unchanged; "
            "make room, or name another file"
        ) from error
