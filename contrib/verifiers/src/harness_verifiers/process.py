"""The subprocess of a taskset: its interpreter and its answers."""

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
from harness_subprocess_environments import Subprocess

VERIFIERS = "verifiers==0.4.0"
"""The tested version."""
VARIABLE = "HARNESS_VERIFIERS_PYTHON"
SCRIPT = Path(__file__).with_name("worker") / "__main__.py"
LOAD_S = 300.0
"""Seconds to load a taskset, including the first import of verifiers."""


class Definition(TypedDict):
    """A tool as described to a model."""

    name: str
    description: str
    parameters: dict[str, JSON]


class TaskEntry(TypedDict):
    """A task; `system` is empty if it has none, `hash` is verifiers' own over all its data."""

    name: str
    system: str
    question: str
    gold: str
    hash: str


class Answer(TypedDict):
    """An answer: a page of `tasks` of `count`, a session's `tools`, `text` or `state`, or a score.

    `files` has the SHA-256 of the taskset's own files, `rewards` score and weight by name,
    `stopped` the reason for the end of the trace.
    """

    id: int
    fault: NotRequired[str]
    tasks: NotRequired[list[TaskEntry]]
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


class Process(Subprocess[Answer]):
    """One subprocess.

    It receives a request for its first tasks at once, and is ready after its answer.
    """

    def __init__(self, command: Sequence[str], name: str) -> None:
        super().__init__(command, name)
        self._began = monotonic()
        self._first = self.send({"do": "tasks", "start": 0})

    def first(self) -> Answer:
        """Return its first tasks, after it has loaded them.

        Raises:
            EnvironmentFault: It does not load within `LOAD_S`, which ends it.
        """
        return self.receive(self._first, LOAD_S)

    async def ready(self, limit_s: float) -> None:
        """Wait until it has loaded. After the limit it continues to load.

        Raises:
            EnvironmentFault: It has not loaded within the limit.
        """
        loaded, loading = await asyncio.wait({asyncio.wrap_future(self._first)}, timeout=limit_s)
        for first in loaded:
            first.exception()  # raised below as a fault
        if loading and monotonic() - self._began < LOAD_S:
            raise EnvironmentFault(
                f"{self.name} is not loaded after {limit_s:g} s, and continues to load"
            )
        await asyncio.to_thread(self.receive, self._first, 0.0 if loading else LOAD_S)


@dataclass(frozen=True)
class Source:
    """A taskset and the way to load it.

    Attributes:
        python: The interpreter with the taskset.
        config: Configuration of the taskset, a JSON object.
        limit: Most tasks; None: all.
    """

    python: str
    taskset: str
    config: str
    limit: int | None

    @classmethod
    def of(cls, data: Mapping[str, JSON]) -> Source:
        """Return the source in a task's data or in a payload."""
        limit = data["limit"]
        return cls(
            str(data["python"]),
            str(data["taskset"]),
            str(data["config"]),
            limit if type(limit) is int else None,
        )

    @property
    def name(self) -> str:
        return f"the subprocess of taskset {self.taskset!r}"

    def start(self) -> Process:
        """Start a process that loads it.

        Raises:
            OSError: The interpreter does not exist.
        """
        words = (self.python, "-P", str(SCRIPT), self.taskset, self.config, json.dumps(self.limit))
        return Process(words, self.name)


_shared: dict[Source, Process] = {}
_lock = threading.Lock()


def shared_process(source: Source) -> Process:
    """Return this process's shared subprocess for a taskset, restarted if it has ended.

    Raises:
        EnvironmentFault: The interpreter does not exist.
    """
    with _lock:
        process = _shared.get(source)
        if process is None or process.gone:
            try:
                process = _shared[source] = source.start()
            except OSError as error:
                raise EnvironmentFault(f"{source.name} does not start: {error}") from error
    return process


def default_python() -> Path:
    """Return the interpreter in HARNESS_VERIFIERS_PYTHON, else that of the cached environment."""
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else cache_dir() / "verifiers" / "bin" / "python"


def checked_python(python: Path) -> str:
    """Return the interpreter's path without resolving links, which identify its environment.

    Raises:
        TaskSetError: There is none; the message states how to create one.
    """
    if not os.access(python, os.X_OK) or python.is_dir():
        folder = python.parent.parent
        raise TaskSetError(
            f"{python} is no interpreter. "
            f"verifiers needs an environment of its own: uv venv {folder} && uv pip "
            f"install --python {folder} {VERIFIERS} and the taskset's package; "
            "or name one: task.options.python=PATH "
            f"or {VARIABLE}"
        )
    return str(python.absolute())
