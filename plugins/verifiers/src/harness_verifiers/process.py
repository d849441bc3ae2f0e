"""The side process of a taskset: which interpreter runs it, and what it answers."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import NotRequired, TypedDict

from harness import EnvironmentFault, TaskSetError
from harness.config import cache_dir
from harness.records import JSON
from harness_side import SideProcess

VERIFIERS = "verifiers==0.4.0"
"""What the tests run with."""
VARIABLE = "HARNESS_VERIFIERS_PYTHON"
SCRIPT = Path(__file__).with_name("side") / "__main__.py"
LOAD_S = 300.0
"""For loading a taskset, the first import of verifiers included."""


class Definition(TypedDict):
    """A tool as a model is told of it."""

    name: str
    description: str
    parameters: dict[str, JSON]


class Told(TypedDict):
    """A task; `system` is empty where it has none, `hash` is verifiers' own of all its data."""

    name: str
    system: str
    question: str
    gold: str
    hash: str


class Answer(TypedDict):
    """What is answered: `tasks` to `count` for a page, `tools`, `text`, `ok` and `state` for sessions, else a score.

    `files` has the SHA-256 of the taskset's own files, `rewards` score and weight by name, `stopped` what ended the
    trace.
    """

    id: int
    fault: NotRequired[str]
    tasks: NotRequired[list[Told]]
    count: NotRequired[int]
    tools: NotRequired[list[Definition]]
    verifiers: NotRequired[str]
    files: NotRequired[Mapping[str, str]]
    text: NotRequired[str]
    ok: NotRequired[bool]
    state: NotRequired[Mapping[str, JSON]]
    value: NotRequired[float]
    rewards: NotRequired[Mapping[str, tuple[float, float]]]
    metrics: NotRequired[Mapping[str, float]]
    stopped: NotRequired[str]


class Process(SideProcess[Answer]):
    """One side process, which is asked for its first tasks at once, and is ready when it has answered."""

    def __init__(self, command: Sequence[str], name: str) -> None:
        super().__init__(command, name)
        self._began = monotonic()
        self._first = self.asked({"do": "tasks", "start": 0})

    def first(self) -> Answer:
        """Its first tasks, once it has loaded them.

        Raises:
            EnvironmentFault: It does not load within `LOAD_S`, which ends it.
        """
        return self.told(self._first, LOAD_S)

    async def ready(self, limit_s: float) -> None:
        """Wait until it has loaded; one that loads still goes on to.

        Raises:
            EnvironmentFault: It has not within the limit.
        """
        loaded, loading = await asyncio.wait({asyncio.wrap_future(self._first)}, timeout=limit_s)
        for one in loaded:
            one.exception()  # raised below, as a fault
        if loading and monotonic() - self._began < LOAD_S:
            raise EnvironmentFault(f"{self.name} is not loaded after {limit_s:g} s, and goes on")
        await asyncio.to_thread(self.told, self._first, 0.0 if loading else LOAD_S)


@dataclass(frozen=True)
class Source:
    """A taskset as it is loaded.

    Attributes:
        python: The interpreter where it is installed.
        config: Of the taskset, a JSON object.
        limit: At most so many tasks; None: all.
    """

    python: str
    taskset: str
    config: str
    limit: int | None

    @classmethod
    def of(cls, told: Mapping[str, JSON]) -> Source:
        """From what a task's data or a payload has of it."""
        limit = told["limit"]
        return cls(
            str(told["python"]),
            str(told["taskset"]),
            str(told["config"]),
            limit if type(limit) is int else None,
        )

    @property
    def name(self) -> str:
        return f"the side process of taskset {self.taskset!r}"

    def start(self) -> Process:
        """A process that has it.

        Raises:
            OSError: There is no such interpreter.
        """
        words = (self.python, "-P", str(SCRIPT), self.taskset, self.config, json.dumps(self.limit))
        return Process(words, self.name)


_kept: dict[Source, Process] = {}
_lock = threading.Lock()


def kept(source: Source) -> Process:
    """The process in which this one loads, carries out and scores a taskset, made anew where it has ended.

    Raises:
        EnvironmentFault: There is no such interpreter.
    """
    with _lock:
        process = _kept.get(source)
        if process is None or process.gone:
            try:
                process = _kept[source] = source.start()
            except OSError as error:
                raise EnvironmentFault(f"{source.name} does not start: {error}") from error
    return process


def default_python() -> Path:
    """What HARNESS_VERIFIERS_PYTHON names, or the interpreter of an environment in the user's cache."""
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else cache_dir() / "verifiers" / "bin" / "python"


def checked(python: Path) -> str:
    """The interpreter's path, not resolved: a link is what makes it an environment's.

    Raises:
        TaskSetError: There is none; the message says how to make one.
    """
    if not os.access(python, os.X_OK) or python.is_dir():
        folder = python.parent.parent
        raise TaskSetError(
            f"{python} is no interpreter. verifiers needs an environment of its own: uv venv {folder} && uv pip "
            f"install --python {folder} {VERIFIERS} and the taskset's package; or name one: task.options.python=PATH "
            f"or {VARIABLE}"
        )
    return str(python.absolute())
