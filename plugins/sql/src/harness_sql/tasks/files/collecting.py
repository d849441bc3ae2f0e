"""Combine the rows of files into questions with ids, clusters and splits, and bad rows."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import TaskSetError
from harness_sql.tasks.files.questions import BadRow, Databases, Question, columns_of, question_of
from harness_sql.tasks.files.reading import read


@dataclass(frozen=True, slots=True)
class BadLine:
    """An invalid row: the file's role and path as given by the user, the place, and the problem."""

    file: str
    path: Path
    where: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path}, {self.where}: {self.problem}"


@dataclass(frozen=True, slots=True)
class Collection:
    """The content of the files.

    Attributes:
        questions: Questions in the order of the files, each with an id, a cluster and a split.
        names: Name of each database by path, identical on every machine.
        splitting: How the splits were made, in words.
    """

    questions: Sequence[Question]
    bad: Sequence[BadLine]
    names: Mapping[Path, str]
    splitting: str


def collect(
    files: Mapping[str, Path],
    databases: Path | None,
    columns: Mapping[str, str | None],
    val_share: float,
    split_seed: int,
) -> Collection:
    """Read all files.

    Args:
        files: Files by role: only `path`, or splits.

    Raises:
        TaskSetError: A file is missing, damaged as a whole, or lacks a column.
    """
    questions: list[Question] = []
    bad: list[BadLine] = []
    has_splits = False
    for role, path in files.items():
        table = read(path)
        known_databases = Databases(Path(os.path.abspath(path)).parent, databases)
        one_database = databases is not None and databases.is_file()
        column_names = columns_of(table, columns, one_database=one_database)
        if role != "path":
            # The file is the split, whatever its own column says.
            column_names.pop("split", None)
        has_splits |= "split" in column_names
        ids: dict[str, str] = {}
        for row in table.rows:
            try:
                question = question_of(row, role, column_names, known_databases)
                if question.id and question.id in ids:
                    raise BadRow(
                        f"the id {question.id!r} is that of {ids[question.id]}, too. "
                        "Give it another"
                    )
            except BadRow as error:
                bad.append(BadLine(role, path, row.where, str(error)))
                continue
            ids[question.id] = row.where
            questions.append(question)
    names = _names({question.database for question in questions})
    for position, question in enumerate(questions):
        # Questions on one database resemble each other, so without a column they are one cluster.
        cluster = question.cluster or names[question.database]
        questions[position] = replace(question, cluster=cluster)
    if "path" not in files:
        splitting = "by file"
        questions = [replace(question, split=question.file) for question in questions]
    elif has_splits:
        splitting = "by column"
    else:
        questions, splitting = _split(questions, val_share, split_seed)
    return Collection(_with_ids(questions, names), bad, names, splitting)


def _names(databases: set[Path]) -> dict[Path, str]:
    """Return the stems of the files or, if stems repeat, paths below their common folder."""
    paths = sorted(databases)
    names = {path: path.stem for path in paths}
    # Absolute paths would be unique too, but a cluster's name must not depend on the machine.
    if len(set(names.values())) < len(paths):
        common = os.path.commonpath([path.parent for path in paths])
        names = {path: path.relative_to(common).as_posix() for path in paths}
    return names


def _split(
    questions: Sequence[Question], val_share: float, seed: int
) -> tuple[list[Question], str]:
    """Assign whole clusters to `val`, ordered by hash, while they fit its share; at least one.

    With only one cluster, questions that repeat or share a gold query stay together instead.
    """
    clusters = {one.cluster for one in questions}
    several = len(clusters) > 1
    units = [one.cluster for one in questions] if several else _kin(questions)
    sizes = Counter(units)
    # The order of a hash depends on the seed and the name alone: a question that is added leaves
    # the other clusters where they were, as far as room allows.
    order = sorted(sizes, key=lambda name: hashlib.sha256(f"{seed}\0{name}".encode()).digest())
    room = max(1, round(val_share * len(questions)))
    val: set[str] = set()
    for name in order:
        if sizes[name] <= room and len(val) < len(order) - 1:
            val.add(name)
            room -= sizes[name]
    if not val and len(order) > 1:
        val.add(min(order, key=lambda name: sizes[name]))
    assigned = []
    for one, unit in zip(questions, units, strict=True):
        assigned.append(replace(one, split="val" if unit in val else "train"))
    what = "by cluster" if several else "by question, since all share one cluster"
    return assigned, f"seed {seed}, {what}"


def _kin(questions: Sequence[Question]) -> list[str]:
    """Return a group name for each question. Equal questions and gold queries share a name."""
    parents: dict[str, str] = {}

    def first(key: str) -> str:
        while parents.setdefault(key, key) != key:
            key = parents[key]
        return key

    for one in questions:
        question = f"question {one.question}"
        low, high = sorted((first(question), first(f"gold {one.gold}" if one.gold else question)))
        parents[high] = low
    return [first(f"question {one.question}") for one in questions]


def _with_ids(questions: Sequence[Question], names: Mapping[Path, str]) -> list[Question]:
    """Add missing ids: the database and a hash of question and gold, independent of line order."""
    taken = {(one.file, one.id) for one in questions if one.id}
    made = []
    for one in questions:
        key = one.id
        if not key:
            text = f"{names[one.database]}\0{one.question}\0{one.gold}\0{one.answer}"
            key = base = f"{names[one.database]}/{hashlib.sha256(text.encode()).hexdigest()[:12]}"
            again = 1
            while (one.file, key) in taken:
                again += 1
                key = f"{base}-{again}"
            taken.add((one.file, key))
        made.append(replace(one, id=key if one.file == "path" else f"{one.file}/{key}"))
    return made


def refuse(bad: Sequence[BadLine]) -> None:
    """Refuse files with bad lines.

    Raises:
        TaskSetError: There are bad lines. The message has the first one and their number.
    """
    if not bad:
        return
    raise TaskSetError(
        f"{bad[0]} (bad lines: {len(bad)}; "
        "`harness data check` with the same task.options names all). "
        "To leave them out: --set task.options.skip_bad=true"
    )
