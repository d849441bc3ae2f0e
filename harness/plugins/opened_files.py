"""Files that an agent's file opens while it is imported, such as a prompt next to it.

`python -m harness.plugins.opened_files FILE.py` imports the file in a process of its own, so that
commands and trainers never import the agent's framework.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from harness.errors import PluginError, last_line
from harness.plugins import one_file

IMPORT_S = 60.0
"""Seconds that an import may take."""
_OPENING = ("__file__", "open", "read_text", "read_bytes", "resources", "get_data")
"""Names in the source of a module that may open a file of its folder."""
_CODE = (".py", ".pyc", ".pyo", ".pyi")
_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"
_WRITING = frozenset("wax+")


def opened_files(target: str) -> list[tuple[str, Path]]:
    """Return the files in its folder that an agent's file opens while it is imported, by name.

    Only files that its own modules read count, and no code. The file is not imported if its source
    has neither a name that opens files nor the name of a file. Files that it opens later, in
    `solve` for example, are not known.

    Raises:
        PluginError: The import takes too long, or ends its process.
    """
    sources = one_file.sources(target)
    main_file = one_file.file_of(target)
    if not _may_open(main_file.parent, [file for _, file in sources]):
        return []
    command = [sys.executable, "-m", "harness.plugins.opened_files", target]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=IMPORT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PluginError(
            f"importing the agent's file {main_file} took more than {IMPORT_S:g} s. "
            "Move slow work out of the import, for example into solve"
        ) from error
    if done.returncode or not done.stdout:
        raise PluginError(
            f"importing the agent's file {main_file} ended its process with status "
            f"{done.returncode}: {last_line(done.stderr, 'no message')}"
        )
    names: list[str] = json.loads(done.stdout)
    files = [(name, main_file.parent / name) for name in names]
    return [(name, file) for name, file in files if file.is_file()]


def _may_open(folder: Path, sources: Iterable[Path]) -> bool:
    """Return whether modules have a name that opens files, or name a file of their folder."""
    for source in sources:
        for node in ast.walk(ast.parse(source.read_bytes())):
            if isinstance(node, ast.Name) and node.id in _OPENING:
                return True
            if isinstance(node, ast.Attribute) and node.attr in _OPENING:
                return True
            if isinstance(node, ast.alias) and node.name.rpartition(".")[2] in _OPENING:
                return True
            if isinstance(node, ast.Constant) and _names_file(folder, node.value):
                return True
    return False


def _names_file(folder: Path, value: object) -> bool:
    if not isinstance(value, str) or not value or "\n" in value:
        return False
    try:
        return (folder / value).is_file()
    except (OSError, ValueError):  # no text for a path
        return False


class _Recorder:
    """Audit hook that records files which modules of an agent's folder open for reading."""

    def __init__(self, file: Path, sources: Iterable[Path]) -> None:
        self.names: set[str] = set()
        self.active = True
        self._folders = (str(file.parent), os.path.realpath(file.parent))
        # An environment in the agent's folder is no part of the agent.
        prefix = Path(sys.prefix).absolute()
        inside = any(prefix.is_relative_to(folder) for folder in self._folders)
        self._installed = f"{prefix}{os.sep}" if inside else None
        self._sources = {os.path.realpath(source) for source in sources}

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and self.active:
            path, mode, flags = arguments
            name = self._name(path)
            if name and _reads(mode, flags) and self._is_asked_by_source(sys._getframe(1)):
                self.names.add(name)

    def _name(self, path: object) -> str:
        """Return the name of a file relative to the agent's folder; empty if it does not count."""
        if not isinstance(path, str | bytes | os.PathLike):  # a descriptor
            return ""
        file = os.path.abspath(os.fsdecode(path))
        installed = self._installed is not None and file.startswith(self._installed)
        if installed or "site-packages" in Path(file).parts or file.endswith(_CODE):
            return ""
        for folder in self._folders:
            if file.startswith(folder + os.sep):
                return Path(file).relative_to(folder).as_posix()
        return ""

    def _is_asked_by_source(self, frame: FrameType | None) -> bool:
        """Return whether the agent's modules have the file opened, not an import of a library."""
        while frame is not None:
            code_file = frame.f_code.co_filename
            if code_file == _IMPORT_SYSTEM:
                return False
            if os.path.realpath(code_file) in self._sources:
                return True
            frame = frame.f_back
        return False


def _reads(mode: object, flags: int) -> bool:
    """Return whether a file is opened for reading alone; what a module writes is no source."""
    if isinstance(mode, str):
        return not _WRITING & set(mode)
    return flags & os.O_ACCMODE == os.O_RDONLY


def main() -> None:
    """Import an agent's file and print the names of the files that it opens, as JSON."""
    target = sys.argv[1]
    # What the file prints must not mix with the result.
    result = os.dup(1)
    os.dup2(2, 1)
    file = one_file.file_of(target)
    recorder = _Recorder(file, [source for _, source in one_file.sources(target)])
    sys.addaudithook(recorder)
    # What is wrong with the file is reported where a runner imports it.
    with suppress(BaseException):
        one_file.module_of(file)
    recorder.active = False
    os.write(result, json.dumps(sorted(recorder.names)).encode())
    os._exit(0)  # without waiting for threads that the file started


if __name__ == "__main__":
    main()
