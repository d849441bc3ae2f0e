"""Reads what Spider is distributed as: a zip file or a folder, official or already made into Parquet."""

from __future__ import annotations

import json
import re
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

from harness.errors import TaskSetError
from harness.tasks.spider.layout import FOLDERS, PARTS, Part

_DATABASE = re.compile(rf"(?:{'|'.join(FOLDERS)})/[^/\\]+/[^/\\]+\.(?:sqlite|sql)")
_COLUMNS = ("question", "db_id", "query")


class Source(Protocol):
    """Files by their path below the folder that holds `dev.json` or `test_dev.parquet`."""

    name: str
    files: list[str]

    def open(self, file: str) -> IO[bytes]:
        """Opens a file for reading."""


@contextmanager
def open_source(path: Path) -> Iterator[Source]:
    """Opens a zip file or folder.

    Raises:
        TaskSetError: It is not there, is damaged, or does not look like Spider.
    """
    if path.is_dir():
        yield _Folder(path)
        return
    if not path.is_file():
        raise TaskSetError(f"no file or folder at {path}. Give the Spider archive or the folder it unpacks to")
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise TaskSetError(f"{path} is not a readable zip file ({error}). Download it again") from error
    with archive:
        yield _Zip(path, archive)


def read_questions(source: Source, part: Part) -> list[dict[str, str]] | None:
    """Question, database id and gold of every question of a part; None if the source does not have it.

    Raises:
        TaskSetError: The file is damaged or has other columns.
    """
    for file in (part.official, part.parquet):
        if file in source.files:
            break
    else:
        return None
    try:
        with source.open(file) as stream:
            rows = json.load(stream) if file.endswith(".json") else _parquet(stream)
    except TaskSetError:
        raise
    except (ValueError, OSError) as error:
        raise TaskSetError(f"{file} of {source.name} is damaged: {error}. Download it again") from error
    try:
        return [{column: str(row[column]) for column in _COLUMNS} for row in rows]
    except (KeyError, TypeError) as error:
        raise TaskSetError(f"{file} of {source.name} lacks {error}; it needs {', '.join(_COLUMNS)}") from error


def database_files(source: Source) -> list[str]:
    """The databases and `schema.sql` files of a source."""
    return [file for file in source.files if _DATABASE.fullmatch(file)]


def copy(source: Source, file: str, target: Path) -> None:
    """Copies one file out of a source, checking its sum where the source keeps one.

    Raises:
        TaskSetError: The file is damaged.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with source.open(file) as stream, target.open("wb") as out:
            shutil.copyfileobj(stream, out, 1 << 20)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise TaskSetError(f"{file} of {source.name} is damaged: {error}. Download it again") from error


def _parquet(stream: IO[bytes]) -> list[dict[str, Any]]:
    import io

    import pyarrow
    import pyarrow.parquet

    try:
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(io.BytesIO(stream.read())).to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(str(error).splitlines()[0]) from error
    return rows


def _root(files: list[str], name: str) -> str:
    """The prefix, empty or ending in `/`, under which the questions lie."""
    marks = {name for part in PARTS for name in (part.official, part.parquet)}
    found = sorted(
        (file for file in files if PurePosixPath(file).name in marks and not file.startswith("__MACOSX/")),
        key=lambda file: (file.count("/"), file),
    )
    if not found:
        raise TaskSetError(f"{name} has no dev.json, train_spider.json or Parquet files: it does not look like Spider")
    return found[0][: -len(PurePosixPath(found[0]).name)]


class _Zip:
    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.name = path.name
        self._archive = archive
        names = [name for name in archive.namelist() if not name.endswith("/")]
        self._root = _root(names, path.name)
        self.files = sorted(name[len(self._root) :] for name in names if name.startswith(self._root))

    def open(self, file: str) -> IO[bytes]:
        try:
            return self._archive.open(self._root + file)
        except (zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
            raise TaskSetError(f"{file} of {self.name} cannot be read: {error}. Download it again") from error


class _Folder:
    def __init__(self, path: Path) -> None:
        self.name = path.name
        names = [
            *(file.relative_to(path).as_posix() for pattern in ("*", "*/*") for file in path.glob(pattern)),
        ]
        root = _root([name for name in names if (path / name).is_file()], str(path))
        self._path = path / root
        self.files = sorted(
            file.relative_to(self._path).as_posix()
            for pattern in ("*", *(f"{folder}/*/*" for folder in FOLDERS))
            for file in self._path.glob(pattern)
            if file.is_file()
        )

    def open(self, file: str) -> IO[bytes]:
        return (self._path / file).open("rb")

    def is_at(self, path: Path) -> bool:
        """Whether the files already lie there."""
        return self._path.resolve() == path.resolve()


def lies_at(source: Source, path: Path) -> bool:
    """Whether a source is a folder that already is `path`, so that nothing needs copying."""
    return isinstance(source, _Folder) and source.is_at(path)
