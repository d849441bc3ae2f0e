"""The task set `tau2`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from harness import Task, TaskSetError
from harness_tau2.data import Manifest, Prepared, default_folder, read
from harness_tau2.environment import ENVIRONMENT
from harness_tau2.worker.messages import TaskEntry

SPLITS = ("train", "val", "base")
CITATION = (
    "Barres et al. 2025, tau2-bench: Evaluating Conversational Agents in a Dual-Control Environment"
)


class Tau2Tasks:
    """Customers of tau2-bench's domains.

    The question is the customer's instructions; the context, the domain's policy.

    Splits: tau2-bench's `train`; its `test`, here `val`; both together, `base`, the split of its
    published results.

    Args:
        domain: `retail` or `airline`; by default both.
        data_dir: The folder with the fetched data; by default `$HARNESS_TAU2_DATA_DIR`, or
            `harness/tau2` in the cache folder.
    """

    def __init__(self, domain: str = "", data_dir: Path | None = None) -> None:
        self.domain = domain
        self.folder = (data_dir or default_folder()).expanduser().resolve()

    @cached_property
    def _manifest(self) -> Manifest:
        return Manifest.read(self.folder)

    @cached_property
    def _domains(self) -> dict[str, Prepared]:
        domains = read(self.folder)
        if self.domain and self.domain not in domains:
            names = ", ".join(domains)
            raise TaskSetError(f"task.options.domain={self.domain!r}: tau2 has {names}")
        return {self.domain: domains[self.domain]} if self.domain else domains

    def load(self, split: str) -> Sequence[Task]:
        if split not in SPLITS:
            raise TaskSetError(f"tau2 has no split {split!r}. Splits: {', '.join(SPLITS)}")
        tasks = []
        for name, domain in self._domains.items():
            for entry in domain.tasks:
                # `base` is the benchmark's name for all of its tasks.
                if "left_out" not in entry and split in (entry["split"], "base"):
                    tasks.append(self._task(split, name, domain, entry))
        return tasks

    def _task(self, split: str, name: str, domain: Prepared, entry: TaskEntry) -> Task:
        needed = {
            "folder": str(self.folder),
            "sha256": self._manifest.sha256,
            "domain": name,
            "tools": domain.tools,
        }
        changes = entry["changes"]
        changed = len(changes or ())
        return Task(
            id=f"{name}/{entry['id']}",
            task_set="tau2",
            split=split,
            question=entry["scenario"],
            gold=json.dumps({"changes": changes, "said": entry["said"]}, sort_keys=True),
            cluster=f"{name}/{entry['id']}",
            difficulty=f"{name}, {changed} record{'s' if changed != 1 else ''} changed",
            data={ENVIRONMENT: needed},
        )

    def context(self, task: Task) -> Mapping[str, str]:
        return {"policy": self._domains[task.data[ENVIRONMENT]["domain"]].policy}

    def describe(self) -> Mapping[str, object]:
        tasks_by_split = {split: self.load(split) for split in SPLITS}
        excluded = 0
        for domain in self._domains.values():
            excluded += sum("left_out" in entry for entry in domain.tasks)
        return {
            "name": "tau2",
            "source": self._manifest.source,
            "source_sha256": self._manifest.source_sha256,
            "licence": self._manifest.licence,
            "citation": CITATION,
            "domains": list(self._domains),
            "counts": {split: len(tasks) for split, tasks in tasks_by_split.items()},
            "left_out": excluded,
            "files_sha256": self._manifest.sha256,
            "tasks_sha256": {split: _hash(tasks) for split, tasks in tasks_by_split.items()},
        }

    def check(self) -> list[str]:
        return self._manifest.changed(self.folder)


def _hash(tasks: Sequence[Task]) -> str:
    """Return the SHA-256 of questions and gold."""
    contents = [(task.question, task.gold) for task in tasks]
    return hashlib.sha256(json.dumps(contents).encode()).hexdigest()
