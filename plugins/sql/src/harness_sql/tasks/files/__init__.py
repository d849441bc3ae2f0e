"""The task set `files`: the user's questions (JSON lines, CSV, Parquet) on SQLite databases."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from harness.contracts.tasks import check_split
from harness.errors import ConfigError, TaskSetError
from harness.records import Task
from harness.util.parsing import file_hash
from harness_sql.sqlite.databases import content_hash, databases_of
from harness_sql.sqlite.environment import ANSWER, DATABASE, GOLD_IS, database_of
from harness_sql.tasks.files.collecting import Collection, collect, refuse
from harness_sql.tasks.files.questions import SPLITS, Question, check_mapping, order_problem
from harness_sql.tasks.schemas import WithSchemas

log = logging.getLogger(__name__)

ALL = "all"
"""The split of all questions, for measurements without training."""


class FilesTasks(WithSchemas):
    """Questions from the user's files.

    Args:
        path: One file of questions. Its splits come from a column, else from a seed.
        train: The file of the split `train`, instead of `path`.
        val: The file of the split `val`.
        test: The file of the split `test`.
        databases: The folder of databases, or one SQLite file for all questions; by default the
            folder of
            the file that names them.
        columns: The column of each field without a usual name; null to use no column for a field.
        val_share: Share of the questions that a split by seed assigns to `val`.
        split_seed: Seed of that split.
        skip_bad: Skip bad lines, report them and record their number in the run's identity, instead
            of
            refusing the file.
        evidence: Show the evidence of a question below it.
        schema_chars: Maximum length of the schema text, in characters.
        style: `compact` (one line per table) or `create` (CREATE statements).
        sample_rows: Number of rows shown below each table.
    """

    name = "files"

    def __init__(
        self,
        path: Path | None = None,
        train: Path | None = None,
        val: Path | None = None,
        test: Path | None = None,
        databases: Path | None = None,
        columns: dict[str, str | None] | None = None,
        val_share: float = 0.2,
        split_seed: int = 0,
        skip_bad: bool = False,
        evidence: bool = True,
        schema_chars: PositiveInt = 4000,
        style: Literal["create", "compact"] = "compact",
        sample_rows: NonNegativeInt = 0,
    ) -> None:
        super().__init__(schema_chars, style, sample_rows)
        self.files: dict[str, Path] = {}
        for role, file in (("path", path), ("train", train), ("val", val), ("test", test)):
            if file is not None:
                self.files[role] = file.expanduser()
        self.databases = databases.expanduser().absolute() if databases is not None else None
        self.columns = columns or {}
        self.val_share = val_share
        self.split_seed = split_seed
        self.skip_bad = skip_bad
        self.evidence = evidence
        self._loaded: dict[Path, dict[str, str]] = {}
        if not self.files:
            raise ConfigError(
                "task set 'files' needs a file of questions: "
                "--set task.options.path=questions.jsonl"
            )
        if path is not None and len(self.files) > 1:
            raise ConfigError(
                "task.options.path is one file of all splits, "
                f"{', '.join(list(self.files)[1:])} are files of single "
                "ones. Give either"
            )
        if not 0 < val_share < 1:
            raise ConfigError(
                f"task.options.val_share is {val_share:g}, but lies between 0 and 1, as 0.2 does"
            )
        if self.databases is not None and not self.databases.exists():
            raise TaskSetError(
                f"task.options.databases: no folder or file {self.databases}. Correct the path"
            )
        check_mapping(self.columns)

    @cached_property
    def collection(self) -> Collection:
        """The content of the files, including bad lines, read once.

        Raises:
            TaskSetError: A file is missing, damaged as a whole, or lacks a column.
        """
        return collect(self.files, self.databases, self.columns, self.val_share, self.split_seed)

    def load(self, split: str) -> Sequence[Task]:
        """Return all tasks of `train`, `val`, `test` or `all`, in the order of the files.

        Raises:
            TaskSetError: The split does not exist or is empty, a file cannot be read, or a line is
                bad.
        """
        check_split("files", split, (*SPLITS, ALL))
        collection = self.collection
        if not self.skip_bad:
            refuse(collection.bad)
        if collection.bad:
            places = _places([f"{one.path} {one.where}" for one in collection.bad])
            _say_once(
                f"left out, as task.options.skip_bad asks: {len(collection.bad)} bad lines, "
                f"{places}"
            )
        for problem, questions in self.order_problems.items():
            places = _places([f"{self.files[one.file]} {one.where}" for one in questions])
            _say_once(f"gold {problem}: {places}")
        tasks = self.good(split)
        if not tasks:
            raise TaskSetError(f"{', '.join(map(str, self.files.values()))}: {self.empty(split)}")
        databases = {Path(database_of(task)) for task in tasks}
        for path in databases - self._loaded.keys():
            self._loaded[path] = _digests(path, collection.names[path])
        return tasks

    @cached_property
    def order_problems(self) -> dict[str, list[Question]]:
        """The questions whose gold query is misread as ordered or unordered, by problem."""
        problems: dict[str, list[Question]] = {}
        for question in self.collection.questions:
            if problem := order_problem(question.gold):
                problems.setdefault(problem, []).append(question)
        return problems

    def good(self, split: str) -> list[Task]:
        """Return the tasks of a split's good lines, ignoring bad ones."""
        tasks: list[Task] = []
        for question in self.collection.questions:
            if split in (question.split, ALL):
                tasks.append(self._task(question, split))
        return tasks

    def _task(self, question: Question, split: str) -> Task:
        text = question.question
        if question.evidence and self.evidence:
            text = f"{text}\nHint: {question.evidence}"
        data = {
            DATABASE: str(question.database),
            GOLD_IS: "query" if question.gold else "answer",
        }
        if question.answer:
            data[ANSWER] = question.answer
        return Task(
            id=question.id,
            task_set=self.name,
            split=split,
            question=text,
            gold=question.gold or question.answer,
            cluster=question.cluster,
            difficulty=question.difficulty,
            data=data,
        )

    def empty(self, split: str) -> str:
        """Return why a split has no question, and what to do."""
        counts = Counter(one.split for one in self.collection.questions)
        has = ", ".join(f"{name} {count}" for name, count in counts.items()) or "no question at all"
        if "path" not in self.files:
            return (
                f"split {split!r} is empty. Name its file: "
                f"--set task.options.{split}=FILE (there is: {has})"
            )
        if self.collection.splitting == "by column":
            return (
                f"split {split!r} is empty: its column has {has}. "
                "Add questions of that split, or let a seed make the "
                "splits: --set task.options.columns.split=null"
            )
        if split == "test":
            return (
                "split 'test' is empty: a split by seed makes train and val "
                f"(there is: {has}). Add a column `split`"
            )
        return f"split {split!r} is empty: {has}, which is too few to split"

    def check(self) -> list[str]:
        """Return databases that were changed, added or removed after their tasks were loaded."""
        changed: set[str] = set()
        for path, before in self._loaded.items():
            now = _digests(path, self.collection.names[path], read_again=True)
            for name in {*before, *now}:
                if before.get(name) != now.get(name):
                    changed.add(name)
        return sorted(changed)

    def describe(self) -> Mapping[str, Any]:
        """Return counts, options, and the hashes of questions and databases, without local paths.

        Hashes cover the content: the same questions in another file format have the same hash.
        """
        collection = self.collection
        if not self.skip_bad:
            refuse(collection.bad)
        databases: dict[str, str] = {}
        for path, own_name in collection.names.items():
            databases.update(_digests(path, own_name))
        by_split: dict[str, list[list[str]]] = {}
        for question in collection.questions:
            by_split.setdefault(question.split, []).append(self._asked(question))
        counts: dict[str, int] = {}
        for split, questions in sorted(by_split.items()):
            counts[split] = len(questions)
        # In the usual order of the splits, whichever the first line of a file belongs to.
        hashes: dict[str, str] = {}
        for split in SPLITS:
            if split in by_split:
                hashes[split] = _hash(by_split[split])
        return {
            "name": self.name,
            "options": {
                "evidence": self.evidence,
                "schema_chars": self.schema_chars,
                "style": self.style,
                "sample_rows": self.sample_rows,
                "skip_bad": self.skip_bad,
            },
            "splitting": collection.splitting,
            "counts": counts,
            "left_out": [f"{one.file} {one.where}" for one in collection.bad],
            "questions_sha256": hashes,
            "databases": len(databases),
            "databases_sha256": _hash(sorted(databases.items())),
        }

    def _asked(self, one: Question) -> list[str]:
        names = self.collection.names
        texts = [
            one.id,
            one.question,
            one.gold,
            one.answer,
            names[one.database],
            one.cluster,
            one.difficulty,
        ]
        return [*texts, one.evidence if self.evidence else ""]


def _places(places: Sequence[str]) -> str:
    """Return the first places and the number of others."""
    more = f" and {len(places) - 5} more" if len(places) > 5 else ""
    return f"{', '.join(places[:5])}{more}"


@cache
def _say_once(message: str) -> None:
    log.error(message)


def _digests(path: Path, name: str, read_again: bool = False) -> dict[str, str]:
    """Return the SHA-256 of a database and of the sibling databases on which it is judged.

    The hash of a missing database is empty.

    Args:
        read_again: Read the files, whatever their timestamps.
    """
    digests = {}
    for file in map(Path, databases_of(path)):
        try:
            digest = file_hash(file) if read_again else content_hash(str(file))
        except OSError:
            digest = ""
        digests[name if file == path else f"{name}, with {file.name}"] = digest
    return digests


def _hash(items: Iterable[object]) -> str:
    digest = hashlib.sha256()
    for item in items:
        digest.update(json.dumps(item).encode() + b"\n")
    return digest.hexdigest()
