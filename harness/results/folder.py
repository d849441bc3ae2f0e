"""A run's folder on disk: written as the run goes, compacted at its end, resumable in between.

runs/<id>/
    run.json             what the run is and what came of it (schema version 1)
    config.yaml          the resolved configuration; runs again as it is
    episodes.parquet     one row a rollout
    transitions.parquet  one row a call (optional)
    steps.parquet        one row a step: the trainer's figures and ours
    mixed.txt            of an evaluation with several samples: tasks that were answered both right and wrong
    reward/              what the reward keeps, for example a judge's grades, and its ledger of calls
    data/                tasks in order: train.parquet, val.parquet
    checkpoints/         the trainer's checkpoints
    logs/                gateway, runners, trainer; *.jsonl are the rows not yet compacted
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args, overload

from harness.errors import EnvironmentProblem, UserError
from harness.layers import parse_json
from harness.results.checked import fault
from harness.results.rows import Call, Episode, LoggedStep
from harness.results.schema import SCHEMA_VERSION, RunRecord

if TYPE_CHECKING:
    from harness.config import Config

Kind = Literal["episodes", "transitions", "steps"]
ROWS: tuple[Kind, ...] = get_args(Kind)
SPARE_BYTES = 256 * 1024
"""Kept back on the disk from a run's start for the record of its end."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk that takes no more."""


class RunFolder:
    """One run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "logs"
        self.checkpoints = path / "checkpoints"
        self.reward = path / "reward"
        self.shadow = path / "shadow"
        """Rollouts that wait for the shadow check, while the run goes on."""

    @property
    def id(self) -> str:
        """The folder's name, by which other records name the run."""
        return self.path.name

    @classmethod
    def create(cls, root: Path, label: str) -> RunFolder:
        """A new folder whose name sorts by time: `20261120-101500-AGENT-a1b2`."""
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', label)}-{secrets.token_hex(2)}"
        folder = cls(root.absolute() / name)
        try:
            folder.logs.mkdir(parents=True)
        except OSError as error:
            raise UserError(f"cannot create run folder {folder.path}: {error.strerror}") from error
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing folder.

        Raises:
            UserError: There is no run there.
        """
        folder = cls(path.absolute())
        if not (folder.path / "run.json").is_file():
            raise UserError(
                f"{path} is not a run folder: it has no run.json. `harness runs list` shows those found"
            )
        return folder

    def read(self) -> RunRecord:
        """The content of `run.json`.

        Raises:
            UserError: It cannot be read, is of another schema version or lacks a field.
        """
        path = self.path / "run.json"
        data = read_json(path, f"Restore it from a copy, or move {self.path} away")
        if data.get("schema_version") != SCHEMA_VERSION:
            raise UserError(
                f"{path} has schema version {data.get('schema_version')}, this harness reads {SCHEMA_VERSION}"
            )
        if name := fault(data, RunRecord):
            raise UserError(
                f"{path} is no complete record: its {name} is missing or of the wrong kind. "
                f"Restore it from a copy, or move {self.path} away"
            )
        return cast(RunRecord, data)

    def write(self, record: RunRecord) -> None:
        """Replace `run.json` in one step, so that a crash leaves the old or the new one."""
        try:
            text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)
        except ValueError:  # a figure is not finite, which JSON cannot write: it is null
            finite = parse_json(json.dumps(record))
            text = json.dumps(finite, indent=2, ensure_ascii=False, allow_nan=False)
        replace_text(self.path / "run.json", text + "\n")

    def update(self, **changes: Any) -> None:
        """Change some top-level keys of `run.json`."""
        self.write(cast(RunRecord, {**self.read(), **changes}))

    @contextmanager
    def dropped_without_record(self) -> Iterator[None]:
        """Remove the folder where the run is refused, or interrupted, before it has a record."""
        try:
            yield
        except (UserError, KeyboardInterrupt):
            if not (self.path / "run.json").exists():
                shutil.rmtree(self.path, ignore_errors=True)
            raise

    def free_bytes(self) -> int:
        """Room on the disk that the folder is on."""
        return shutil.disk_usage(self.path).free

    def reserve(self, needed: int) -> None:
        """Keep back what the record of the run's end takes, which is written however full the disk is by then.

        Args:
            needed: Bytes that the run is known to write.

        Raises:
            EnvironmentProblem: There is less room than that.
        """
        if (free := self.free_bytes()) < needed:
            raise EnvironmentProblem(
                f"{self.path} has {free / 2**20:.0f} MiB of disk left and the run needs {needed / 2**20:.0f} MiB at "
                "least: make room, or choose another disk with --runs-dir"
            )
        with self._spare.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, SPARE_BYTES)

    def release(self) -> None:
        """Give back what `reserve` keeps."""
        self._spare.unlink(missing_ok=True)

    @property
    def _spare(self) -> Path:
        return self.path / ".spare"

    def write_config(self, config: Config) -> None:
        """Keep the configuration with the run, in a form that runs again."""
        import yaml

        text = "# The resolved configuration of this run; `harness train --config THIS` runs it again.\n"
        replace_text(
            self.path / "config.yaml",
            text + yaml.safe_dump(config.dump(), sort_keys=False, allow_unicode=True),
        )

    def write_mixed(self, tasks: Iterable[str]) -> None:
        """Keep the ids of tasks whose rewards differ, one a line, as `task.train_only` reads them."""
        replace_text(self.path / "mixed.txt", "".join(f"{task}\n" for task in tasks))

    def config(self) -> Config:
        """The content of `config.yaml`.

        Raises:
            ConfigError: It cannot be read or does not fit.
        """
        from harness.config import load_config

        return load_config(file=self.path / "config.yaml")

    @overload
    def rows(self, kind: Literal["episodes"]) -> Iterator[Episode]: ...
    @overload
    def rows(self, kind: Literal["transitions"]) -> Iterator[Call]: ...
    @overload
    def rows(self, kind: Literal["steps"]) -> Iterator[LoggedStep]: ...
    def rows(self, kind: Kind) -> Iterator[Any]:
        """Rows of `episodes`, `transitions` or `steps` that are not compacted yet, in order of writing.

        Raises:
            UserError: A whole line is no row.
        """
        for path in sorted(self.logs.glob(f"{kind}-*.jsonl")):
            with path.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    if line.endswith(b"\n"):  # a killed process may leave half a line
                        yield _row(line, path, number)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run: two processes never train it at once.

        Raises:
            UserError: Another process does, or the folder cannot be written.
        """
        with held(
            self.path,
            f"{self.path} is still running in another process: wait for its end, or stop it",
        ):
            yield

    def drop_after(self, step: int, *, validation: bool = False) -> None:
        """Set aside the rows of steps that a resumed run will do again (kept as `superseded-*.jsonl`).

        Args:
            validation: Also those of the validation after `step`.
        """
        for kind in ROWS:
            for path in sorted(self.logs.glob(f"{kind}-*.jsonl")):
                kept: list[bytes] = []
                dropped: list[bytes] = []
                for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
                    if not line.endswith(b"\n"):
                        continue
                    row = _row(line, path, number)
                    again = validation and row["step"] == step and row.get("phase") == "val"
                    (dropped if again or row["step"] > step else kept).append(line)
                if dropped:
                    with (self.logs / f"superseded-{path.name}").open("ab") as out:
                        out.writelines(dropped)
                replace_text(path, b"".join(kept).decode())


class RowLog:
    """Appends rows to a run's folder; one file a process, every row on disk when `add` returns."""

    def __init__(self, folder: RunFolder, kind: str) -> None:
        folder.logs.mkdir(parents=True, exist_ok=True)
        path = folder.logs / f"{kind}-{time.time_ns()}-{os.getpid()}.jsonl"
        self._file = path.open("ab", buffering=0)

    def add(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Append rows, whole or not at all.

        Raises:
            OSError: The disk is full.
        """
        data = memoryview(b"".join(_line(row) for row in rows))
        before = os.fstat(self._file.fileno()).st_size
        try:
            while data:
                data = data[self._file.write(data) :]  # a disk that fills up takes a part
        except OSError:
            self._file.truncate(before)
            raise

    def close(self) -> None:
        """Let go of the file; its rows have long been on disk."""
        self._file.close()


def _line(row: Mapping[str, object]) -> bytes:
    import orjson

    try:
        return orjson.dumps(row) + b"\n"
    except TypeError:  # a lone surrogate, which no encoding has
        return json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


@contextmanager
def held(folder: Path, busy: str = "") -> Iterator[None]:
    """Hold a folder, made where it is missing, by the lock on its `.lock`.

    Args:
        busy: What to say where another process holds it; empty: wait for it.

    Raises:
        UserError: Another process does and is not waited for, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
        except OSError as error:
            raise UserError(busy) from error
        yield


def endings() -> list[signal.Signals]:
    """Signals that tell this process to end; that of a closed terminal is not among them under `nohup`."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP])]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP are ignored meanwhile: what ends is written down whole."""
    if (
        threading.current_thread() is not threading.main_thread()
    ):  # only there may Python's handlers change
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in endings()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def read_json(path: Path, advice: str) -> dict[str, Any]:
    """A JSON file that holds an object.

    Args:
        advice: What to do where it does not; ends the message.

    Raises:
        UserError: It cannot be read, or holds something else.
    """
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}. {advice}") from error
    except ValueError as error:  # no JSON, or no text at all
        raise UserError(
            f"{path} is damaged, not JSON that can be read ({error}). {advice}"
        ) from error
    if not isinstance(data, dict):
        raise UserError(
            f"{path} is damaged: it holds a {type(data).__name__}, not an object. {advice}"
        )
    return data


def _row(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        row = parse_json(line)
        if isinstance(row, dict):
            return row
    except ValueError:
        pass
    raise UserError(
        f"line {number} of {path} is damaged, not a row. Restore the file, or take the line out"
    )


def now() -> str:
    """The time as records state it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def replace_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a file in one step, so that a crash leaves the old or the new one. `mode` is less the umask, as usual."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.touch(mode)
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
