"""The task set `verifiers`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from harness import EnvironmentFault, Task, TaskSetError
from harness.contracts.tasks import check_split
from harness.util.parsing import digest, has_hash
from harness_verifiers.process import (
    LOAD_S,
    VERIFIERS,
    Definition,
    Source,
    TaskEntry,
    checked_python,
    default_python,
    shared_process,
)

DATA = "verifiers"
"""Key in a task's data for its tools and its reward."""
SPLITS = ("train", "val", "all")


@dataclass(frozen=True)
class Loaded:
    """A loaded taskset: tasks, tools, the version of verifiers, files with SHA-256."""

    tasks: Sequence[TaskEntry]
    tools: Sequence[Definition]
    version: str
    files: Mapping[str, str]


@lru_cache(maxsize=8)
def loaded(source: Source) -> Loaded:
    """Load a taskset once per process, since the import of verifiers takes seconds.

    Raises:
        TaskSetError: It cannot be loaded or run; the message states why.
    """
    try:
        process = shared_process(source)
        first = process.first()
        tasks = list(first["tasks"])
        while len(tasks) < first["count"]:
            tasks += process.wait(LOAD_S, {"do": "tasks", "start": len(tasks)})["tasks"]
    except EnvironmentFault as error:
        lacks = "ModuleNotFoundError" in str(error) or "No module named" in str(error)
        hint = (
            f". Install it: uv pip install --python {source.python} "
            f"{VERIFIERS} and the taskset's package"
        )
        raise TaskSetError(f"{error}{hint if lacks else ''}") from error
    return Loaded(tasks, first["tools"], first["verifiers"], first["files"])


class VerifiersTasks:
    """The tasks of a taskset, in its order: first `train`, then `val`, together `all`.

    Args:
        taskset: Its name, as for verifiers' `eval`.
        config: Its configuration, for example `{dataset_split: test}`.
        limit: Most tasks; required for an infinite taskset.
        val_size: Number of tasks in `val`; by default a fifth, rounded up.
        python: The interpreter with verifiers and the taskset; by default
            `$HARNESS_VERIFIERS_PYTHON`, or that of `harness/verifiers` in the cache folder.
    """

    def __init__(
        self,
        taskset: str = "",
        config: Mapping[str, object] | None = None,
        limit: int | None = None,
        val_size: int | None = None,
        python: Path | None = None,
    ) -> None:
        if limit is not None and limit < 1:
            raise TaskSetError(f"task.options.limit={limit} must be at least 1")
        if val_size is not None and val_size < 1:
            raise TaskSetError(f"task.options.val_size={val_size} must be at least 1")
        self.taskset, self.limit, self.val_size = taskset, limit, val_size
        self.config = json.dumps(config or {}, sort_keys=True)
        self.python = (python or default_python()).expanduser()

    def load(self, split: str) -> Sequence[Task]:
        """Return all tasks of a split, with their tools at the first call.

        Raises:
            TaskSetError: The split does not exist, or the taskset cannot be loaded or run; the
                message states why.
        """
        check_split("verifiers", split, SPLITS)
        tasks = self._loaded.tasks
        val = -(-len(tasks) // 5) if self.val_size is None else self.val_size
        if split == "train" and val >= len(tasks):
            raise TaskSetError(
                f"taskset {self.taskset!r}: all {len(tasks)} tasks are val. "
                "Lower task.options.val_size"
            )
        first = len(tasks) - val
        numbers = {
            "train": range(first),
            "val": range(max(first, 0), len(tasks)),
            "all": range(len(tasks)),
        }[split]
        return [self._task(split, number, tasks[number]) for number in numbers]

    @cached_property
    def _source(self) -> Source:
        if not self.taskset:
            raise TaskSetError(
                "which taskset? Name one that is installed: task.options.taskset=NAME"
            )
        return Source(checked_python(self.python), self.taskset, self.config, self.limit)

    @property
    def _loaded(self) -> Loaded:
        return loaded(self._source)

    def _task(self, split: str, number: int, entry: TaskEntry) -> Task:
        source = self._source
        return Task(
            id=f"{self.taskset}/{number}",
            task_set="verifiers",
            split=split,
            question=entry["question"],
            gold=entry["gold"],
            data={
                DATA: {
                    "python": source.python,
                    "taskset": source.taskset,
                    "config": source.config,
                    "limit": source.limit,
                    "number": number,
                    "hash": entry["hash"],
                    "tools": self._loaded.tools,
                }
            },
        )

    def context(self, task: Task) -> Mapping[str, str]:
        """Return the taskset's own system prompt, if it has one."""
        system = self._loaded.tasks[task.data[DATA]["number"]]["system"]
        return {"instructions": system} if system.strip() else {}

    def describe(self) -> Mapping[str, object]:
        """Return the loaded taskset with verifiers' own hashes of the tasks.

        No path of this machine.
        """
        loaded = self._loaded
        hashes = "".join(task["hash"] for task in loaded.tasks)
        return {
            "name": "verifiers",
            "taskset": self.taskset,
            "config_sha256": hashlib.sha256(self.config.encode()).hexdigest(),
            "verifiers": loaded.version,
            "counts": {split: len(self.load(split)) for split in SPLITS},
            "tasks_sha256": hashlib.sha256(hashes.encode()).hexdigest(),
            "tools_sha256": digest({"tools": loaded.tools}),
        }

    def check(self) -> list[str]:
        """Return changed files of the taskset's package."""
        there = self._loaded.files
        return [name for name, known in there.items() if not has_hash(Path(name), known)]
