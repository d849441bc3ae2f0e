"""A run's folder on disk: written during the run, compacted at its end, resumable in between.

runs/<id>/
    run.json             description and result of the run (schema version 1)
    config.yaml          the resolved configuration, which can be run again
    episodes.parquet     one row per rollout
    transitions.parquet  one row per call (optional)
    steps.parquet        one row per step: figures of the trainer and of harness
    mixed.txt            of an evaluation with several samples: tasks with right and wrong answers
    reward/              data of the reward, for example a judge's grades and its ledger of calls
    data/                tasks in order: train.parquet, val.parquet
    checkpoints/         the trainer's checkpoints
    logs/                gateway, runners, trainer; *.jsonl are the rows not yet compacted
"""

from __future__ import annotations

import errno
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
from harness.runs.locks import held, is_held
from harness.runs.record_checks import record_fault
from harness.runs.row_checks import parse_row
from harness.runs.rows import Call, Episode, LoggedStep
from harness.runs.schema import SCHEMA_VERSION, RunRecord
from harness.util.parsing import dump_yaml, parse_json

if TYPE_CHECKING:
    from harness.config import Config

Kind = Literal["episodes", "transitions", "steps"]
ROWS: tuple[Kind, ...] = get_args(Kind)
SPARE_BYTES = 256 * 1024
"""Bytes reserved on the disk from a run's start for its final record."""
LABEL_CHARS = 80
"""Most characters of a label in a folder's name."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk."""


class RunFolder:
    """One run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "logs"
        self.checkpoints = path / "checkpoints"
        self.reward = path / "reward"
        self.shadow = path / "shadow"
        """Folder of rollouts that wait for the shadow check during the run."""

    @property
    def id(self) -> str:
        """The folder's name, by which other records refer to the run."""
        return self.path.name

    @classmethod
    def create(cls, root: Path, label: str) -> RunFolder:
        """Create a folder with a name that sorts by time: `20261120-101500-AGENT-a1b2`.

        A long label, as of a mixture of agents, is cut.
        """
        name = (
            f"{time.strftime('%Y%m%d-%H%M%S')}-"
            f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', label)[:LABEL_CHARS]}-{secrets.token_hex(2)}"
        )
        folder = cls(root.absolute() / name)
        try:
            folder.logs.mkdir(parents=True)
        except OSError as error:
            raise UserError(f"cannot create run folder {folder.path}: {error.strerror}") from error
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing folder.

        Raises:
            UserError: The folder has no run.
        """
        folder = cls(path.absolute())
        if not (folder.path / "run.json").is_file():
            raise UserError(
                f"{path} is not a run folder: it has no run.json. "
                "`harness runs list` shows those found"
            )
        return folder

    def read(self) -> RunRecord:
        """Return the content of `run.json`.

        Raises:
            UserError: The file cannot be read, has another schema version, lacks a field, or has a
                value that no run has.
        """
        path = self.path / "run.json"
        data = read_json(path, f"Restore it from a copy, or move {self.path} away")
        if data.get("schema_version") != SCHEMA_VERSION:
            raise UserError(
                f"{path} has schema version {data.get('schema_version')}, "
                f"this harness reads {SCHEMA_VERSION}"
            )
        if wrong := record_fault(data):
            raise UserError(
                f"{path} is no complete record: {wrong}. "
                f"Restore it from a copy, or move {self.path} away"
            )
        return cast(RunRecord, data)

    def write(self, record: RunRecord) -> None:
        """Replace `run.json` atomically, so that a crash leaves the old or the new one."""
        try:
            text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)
        except ValueError:  # write null for figures that are not finite, which JSON lacks
            finite = parse_json(json.dumps(record))
            text = json.dumps(finite, indent=2, ensure_ascii=False, allow_nan=False)
        replace_text(self.path / "run.json", text + "\n")

    def update(self, **changes: Any) -> None:
        """Change some top-level keys of `run.json`."""
        self.write(cast(RunRecord, {**self.read(), **changes}))

    @contextmanager
    def dropped_without_record(self) -> Iterator[None]:
        """Remove the folder if the run is refused or interrupted before it has a record."""
        try:
            yield
        except (UserError, KeyboardInterrupt):
            # A run with a record has something to resume, or at least a reason to read.
            if not (self.path / "run.json").exists():
                shutil.rmtree(self.path, ignore_errors=True)
            raise

    def free_bytes(self) -> int:
        """Return the free bytes on the folder's disk."""
        return shutil.disk_usage(self.path).free

    def checkpoint_bytes(self) -> int:
        """Return the bytes of all checkpoints in the folder; 0 without any."""
        files = filter(Path.is_file, self.checkpoints.rglob("*"))
        return sum(file.stat().st_size for file in files)

    def reserve(self, needed: int) -> None:
        """Reserve space for the final record, so that it can be written to a full disk.

        Args:
            needed: Bytes that the run is known to write.

        Raises:
            EnvironmentProblem: There is less free space.
        """
        if (free := self.free_bytes()) < needed:
            raise EnvironmentProblem(
                f"{self.path} has {free / 2**20:.0f} MiB "
                f"of disk left and the run needs {needed / 2**20:.0f} MiB at "
                "least: make room, or choose another disk with --runs-dir"
            )
        with self._spare.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, SPARE_BYTES)

    def release(self) -> None:
        """Free the space that `reserve` holds."""
        self._spare.unlink(missing_ok=True)

    @property
    def _spare(self) -> Path:
        return self.path / ".spare"

    def write_config(self, config: Config) -> None:
        """Write the configuration in a form that can be run again."""
        text = (
            "# The resolved configuration of this run; "
            "`harness train --config THIS` runs it again.\n"
        )
        replace_text(
            self.path / "config.yaml",
            text + dump_yaml(config.dump()),
        )

    def write_mixed(self, tasks: Iterable[str]) -> None:
        """Write the ids of tasks with different rewards, one per line, for `task.train_only`."""
        replace_text(self.path / "mixed.txt", "".join(f"{task}\n" for task in tasks))

    def config(self) -> Config:
        """Return the content of `config.yaml`.

        Raises:
            ConfigError: The file cannot be read or does not fit.
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
        """Yield rows of `episodes`, `transitions` or `steps` that are not compacted yet, in order.

        Raises:
            UserError: A complete line is no row.
        """
        for path in sorted(self.logs.glob(f"{kind}-*.jsonl")):
            with path.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    if line.endswith(b"\n"):  # a killed process may leave a partial line
                        yield parse_row(line, kind, path, number)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the run, so that two processes never train it at once.

        Raises:
            UserError: Another process holds the lock, or the folder cannot be written.
        """
        with held(
            self.path,
            f"{self.path} is still running in another process: wait for its end, or stop it",
        ):
            yield

    def is_held(self) -> bool:
        """Return whether a process of this machine holds the run's lock."""
        return is_held(self.path)

    def drop_after(self, step: int, *, validation: bool = False) -> None:
        """Move the rows of steps that a resumed run will repeat to `superseded-*.jsonl`.

        Args:
            validation: Also move those of the validation after `step`.
        """
        for kind in ROWS:
            for path in sorted(self.logs.glob(f"{kind}-*.jsonl")):
                valid: list[bytes] = []
                superseded: list[bytes] = []
                for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
                    # Remove the partial line of a killed process, or the next row would be appended
                    # to it.
                    if not line.endswith(b"\n"):
                        continue
                    row = parse_row(line, kind, path, number)
                    again = validation and row["step"] == step and row.get("phase") == "val"
                    if again or row["step"] > step:
                        superseded.append(line)
                    else:
                        valid.append(line)
                # Copy before removing: an interruption in between repeats rows, but loses none.
                if superseded:
                    with (self.logs / f"superseded-{path.name}").open("ab") as out:
                        out.writelines(superseded)
                replace_text(path, b"".join(valid).decode())


class RowLog:
    """Append rows to a run's folder; one file per process, every row on disk when `add` returns."""

    def __init__(self, folder: RunFolder, kind: str) -> None:
        folder.logs.mkdir(parents=True, exist_ok=True)
        path = folder.logs / f"{kind}-{time.time_ns()}-{os.getpid()}.jsonl"
        self._file = path.open("ab", buffering=0)

    def add(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Append all rows or none.

        Raises:
            OSError: The disk is full.
        """
        # All rows or none, also on a full disk: a part of them would be half a rollout.
        data = memoryview(b"".join(map(_line, rows)))
        before = os.fstat(self._file.fileno()).st_size
        try:
            while data:
                data = data[self._file.write(data) :]  # a disk that becomes full may write a part
        except OSError:
            self._file.truncate(before)
            raise

    def close(self) -> None:
        """Close the file. Its rows are already on disk."""
        self._file.close()


def _line(row: Mapping[str, object]) -> bytes:
    import orjson

    try:
        return orjson.dumps(row) + b"\n"
    except TypeError:  # a lone surrogate, which UTF-8 cannot encode
        return json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def endings() -> list[signal.Signals]:
    """Return the signals that end this process; without that of a closed terminal under `nohup`."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP])]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore Ctrl-C, SIGTERM and SIGHUP in the block, so that final records are complete."""
    # Python allows handlers only in the main thread.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in endings()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def read_json(path: Path, advice: str) -> dict[str, Any]:
    """Return the object in a JSON file.

    Args:
        advice: What to do about an invalid file; ends the message.

    Raises:
        UserError: The file cannot be read, or contains something else.
    """
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}. {advice}") from error
    except ValueError as error:  # no JSON, or no text
        raise UserError(
            f"{path} is damaged, not JSON that can be read ({error}). {advice}"
        ) from error
    if not isinstance(data, dict):
        raise UserError(
            f"{path} is damaged: it holds a {type(data).__name__}, not an object. {advice}"
        )
    return data


def now() -> str:
    """Return the current time in the format of records."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def replace_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a file atomically, so that a crash leaves the old or the new one.

    The umask applies to `mode`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.touch(mode)
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
