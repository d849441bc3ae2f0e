"""Read a task set as distributed: zip files (also nested) or folders, official or as Parquet."""

from __future__ import annotations

import io
import os
import re
import shutil
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from harness.errors import TaskSetError
from harness.util.parsing import parse_json
from harness_sql.tasks.prepared.layout import MANIFEST, Layout, Part

_DEPTH = 6
"""Maximum depth of the search for files below the given folder."""
MEMORY_BYTES = 256 * 2**20
"""Maximum unpacked size of a file that is read whole. Published questions have a tenth of it."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of a folder or an archive. Calling it opens it.

    Attributes:
        size: Unpacked size in bytes. `zipfile` never reads more of a file than this.
    """

    opener: Callable[[], IO[bytes]]
    size: int

    def __call__(self) -> IO[bytes]:
        return self.opener()


Files = Mapping[str, File]


@dataclass(frozen=True, slots=True)
class Source:
    """Files by their path in the prepared folder, in the fastest order for reading.

    Attributes:
        folder: The folder in which the files have these paths; None for an archive.
        made_for: The task set for which harness prepared the folder; empty if it did not.
    """

    name: str
    files: Files
    folder: Path | None = None
    made_for: str = ""

    def open(self, file: str) -> IO[bytes]:
        """Open a file for reading.

        Raises:
            TaskSetError: It cannot be read.
        """
        try:
            return self.files[file]()
        except (zipfile.BadZipFile, RuntimeError, OSError) as error:
            raise TaskSetError(
                f"{file} of {self.name} cannot be read: {error}. Download it again"
            ) from error

    def read(self, file: str) -> bytes:
        """Return the content of a file.

        Raises:
            TaskSetError: It cannot be read, or is too large for memory.
            OSError, EOFError, BadZipFile, zlib.error: It is damaged.
        """
        size = self.files[file].size
        if size > MEMORY_BYTES:
            raise TaskSetError(
                f"{file} of {self.name} unpacks to {size / 2**20:,.0f} MiB, and files of its "
                f"kind have {MEMORY_BYTES // 2**20} MiB at most. "
                "Download it again, from where the task set is published"
            )
        with self.open(file) as stream:
            return stream.read(size + 1)  # without a number `zipfile` unpacks first and cuts then


@contextmanager
def open_source(
    path: Path, title: str, marks: Collection[str], folders: Sequence[str]
) -> Iterator[Source]:
    """Open a zip file, a folder or a single file of questions.

    Args:
        title: Name of the expected task set.
        marks: Names of the files of questions.
        folders: Folders of databases.

    Raises:
        TaskSetError: It does not exist, is damaged, or has no questions.
    """
    with ExitStack() as stack:
        files = _opened(path, folders, stack)
        questions = [name for name in files if PurePosixPath(name).name in marks]
        if not questions:
            some = " or ".join(sorted(marks)[:4])
            raise TaskSetError(f"{path} has no {some}: it does not look like {title}")
        # A source may have copies of the files further down: the one nearest to the top counts.
        nearest = min(questions, key=lambda name: (name.count("/"), name))
        root = nearest[: -len(PurePosixPath(nearest).name)]
        near_questions: dict[str, File] = {}
        for name, opener in files.items():
            below = name[len(root) :]
            if name.startswith(root) and (below in marks or below == MANIFEST):
                near_questions[below] = opener
        folder = path.parent / root if path.is_dir() else None
        source = Source(path.name, {**near_questions, **_databases(files, folders)}, folder)
        yield replace(source, made_for=_made_for(source))


@contextmanager
def open_databases(path: Path, folders: Sequence[str]) -> Iterator[Source]:
    """Open a source of databases: a task set, prepared or not, or its folder of databases.

    Raises:
        TaskSetError: It does not exist, is damaged, or has no databases.
    """
    with ExitStack() as stack:
        files = _opened(path, folders, stack)
        databases = _databases(files, folders)
        if not databases:
            # The given folder may itself be the one with databases, under any name.
            renamed = {}
            for name, opener in files.items():
                renamed[f"{folders[0]}/{name.partition('/')[2]}"] = opener
            databases = _databases(renamed, folders)
        if not databases:
            raise TaskSetError(
                f"{path} has no databases (such as {folders[0]}/NAME/NAME.sqlite). "
                "Correct --databases"
            )
        yield Source(path.name, databases)


def merged(sources: Sequence[Source]) -> Source:
    """Merge sources. If several have a file, the first one's is used."""
    if len(sources) == 1:
        return sources[0]
    files: dict[str, File] = {}
    for source in reversed(sources):
        files.update(source.files)
    return Source(" and ".join(source.name for source in sources), files)


def with_databases(source: Source, databases: Source, db_ids: Collection[str]) -> Source:
    """Return a source with databases from another one, as far as that has them."""
    given = {}
    for name, opener in databases.files.items():
        if (_id(name) or "") in db_ids:
            given[name] = opener
    # A database is replaced as a whole: its other files describe the replaced one.
    replaced = set(map(_id, given))
    files: dict[str, File] = {}
    for name, opener in source.files.items():
        if _id(name) not in replaced:
            files[name] = opener
    return replace(source, files={**files, **given}, folder=None)


def read_questions(source: Source, layout: Layout, part: Part) -> list[dict[str, str]] | None:
    """Return the layout's columns of every question of a part; None if the source lacks the part.

    Raises:
        TaskSetError: The file is damaged or has other columns.
    """
    file, rows = _rows(source, part)
    if not file:
        return None
    try:
        return [_question(row, layout) for row in rows]
    except (KeyError, TypeError) as error:
        needed = []
        for column, names in layout.columns.items():
            if column not in layout.optional:
                needed.append(names[0])
        raise TaskSetError(
            f"{file} of {source.name} lacks {error}; it needs {', '.join(needed)}"
        ) from error


def _question(row: Any, layout: Layout) -> dict[str, str]:
    """Return the layout's columns of a row. Editions of a task set name a column differently."""
    question = {}
    for column, names in layout.columns.items():
        value = None
        for name in names:
            if name in row:
                value = row[name]
                break
        question[column] = _text(value, names[0], column, layout)
    return question


def columns_of(source: Source, part: Part) -> frozenset[str]:
    """Return the columns of a part's first question, or an empty set if there is none."""
    _, rows = _rows(source, part)
    return frozenset(rows[0]) if rows and isinstance(rows[0], dict) else frozenset()


def copy(source: Source, file: str, target: Path) -> None:
    """Copy one file from a source, checking its checksum if the source has one.

    Raises:
        TaskSetError: The file is damaged.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open(file) as stream, target.open("wb") as out:
        try:
            shutil.copyfileobj(stream, out, 1 << 20)
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise TaskSetError(
                f"{file} of {source.name} is damaged: {error}. Download it again"
            ) from error


def _text(value: object, official: str, column: str, layout: Layout) -> str:
    if value is None and column in layout.optional:
        return ""
    if value is None:
        raise KeyError(official)
    return str(value)


def _rows(source: Source, part: Part) -> tuple[str, list[Any]]:
    present = [file for file in (part.official, part.parquet) if file in source.files]
    if not present:
        return "", []
    file = present[0]
    try:
        content = source.read(file)
        rows = (
            parse_json(content.decode("utf-8-sig")) if file.endswith(".json") else _parquet(content)
        )
    except (ValueError, OSError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise TaskSetError(
            f"{file} of {source.name} is damaged: {error}. Download it again"
        ) from error
    if not isinstance(rows, list):
        raise TaskSetError(f"{file} of {source.name} is no list of questions. Download it again")
    return file, rows


def _parquet(content: bytes) -> list[dict[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        rows: list[dict[str, object]] = pyarrow.parquet.read_table(io.BytesIO(content)).to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(str(error).splitlines()[0]) from error
    return rows


def _made_for(source: Source) -> str:
    if MANIFEST not in source.files:
        return ""
    try:
        return str(parse_json(source.read(MANIFEST)).get("task_set", ""))
    except (ValueError, OSError, AttributeError, zipfile.BadZipFile):
        return ""


def _databases(files: Files, folders: Sequence[str]) -> Files:
    """Return databases, `schema.sql` files and descriptions by `FOLDER/<db_id>/...`."""
    pattern = re.compile(
        rf"(?:.*/)?((?:{'|'.join(folders)})/[^/\\.][^/\\]*/"
        r"(?:[^/\\.][^/\\]*\.(?:sqlite|sql)|database_description/[^/\\.][^/\\]*\.csv))"
    )
    found: dict[str, File] = {}
    for name, opener in files.items():
        if match := pattern.fullmatch(name):
            found.setdefault(match[1], opener)
    return found


def _id(file: str) -> str | None:
    """Return the database to which a file belongs; None for a file of questions."""
    parts = file.split("/")
    return parts[1] if len(parts) > 2 else None


def _opened(path: Path, folders: Sequence[str], stack: ExitStack) -> Files:
    """Return every file by path. Paths in a folder begin with the folder's own name."""
    if path.is_dir():
        files = _walked(path.resolve())
    elif not path.is_file():
        raise TaskSetError(
            f"no file or folder at {path}. Give the archive or the folder it unpacks to"
        )
    elif path.suffix.lower() in (".json", ".parquet"):
        return {path.name: _file(path)}
    else:
        try:
            files = _zipped(stack.enter_context(zipfile.ZipFile(path)))
        except (zipfile.BadZipFile, OSError) as error:
            raise TaskSetError(
                f"{path} is not a readable zip file ({error}). Download it again"
            ) from error
    for folder in folders:
        inner = _nested(files, folder)
        if inner is None:
            continue
        try:
            archive = stack.enter_context(zipfile.ZipFile(stack.enter_context(files[inner]())))
        except (zipfile.BadZipFile, OSError, zlib.error, EOFError, RuntimeError) as error:
            raise TaskSetError(
                f"{inner} of {path.name} is damaged: {error}. Download it again"
            ) from error
        unpacked = _zipped(archive)
        # Some archives contain the folder of their name, others only what is in it.
        below = "" if _databases(unpacked, [folder]) else f"{folder}/"
        files = {**files, **{f"{below}{name}": opener for name, opener in unpacked.items()}}
    return files


def _nested(files: Files, folder: str) -> str | None:
    """Return the archive of a folder of databases, or None if the folder is unpacked or absent."""
    archives = []
    for name in files:
        if f"/{folder}/" in f"/{name}":
            return None
        if f"/{name}".endswith(f"/{folder}.zip"):
            archives.append(name)
    return archives[0] if archives else None


def _file(path: Path) -> File:
    return File(lambda: path.open("rb"), path.stat().st_size if path.exists() else 0)


def _walked(path: Path) -> Files:
    files: dict[str, File] = {}
    for place, folders, names in os.walk(path, followlinks=True):
        here = Path(place).relative_to(path.parent)
        folders[:] = sorted(folders) if len(here.parts) < _DEPTH else []
        for name in sorted(names):
            files[(here / name).as_posix()] = _file(Path(place) / name)
    return files


def _zipped(archive: zipfile.ZipFile) -> Files:
    """Return files in archive order, so that a compressed nested archive is read only once."""
    files = {}
    for entry in sorted(archive.infolist(), key=lambda entry: entry.header_offset):
        # macOS adds a file of attributes for each file, with the same ending.
        if not entry.is_dir() and not entry.filename.startswith("__MACOSX/"):
            files[entry.filename] = File(partial(archive.open, entry), entry.file_size)
    return files
