"""Looks at files of questions before anything is trained on them. Nothing is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.environments.sql.databases import databases_of
from harness.environments.sql.evaluator import gold_result
from harness.tasks.files import ALL, FilesTasks
from harness.tasks.files.questions import SPLITS, Question

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""
GOLD_S = 5.0
"""What gold may take: half of the deadline that a verdict has by default."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found in several places, which are named as in `questions.jsonl, line 3`."""

    what: str
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What was found.

    Attributes:
        questions: Good ones.
        gold_queries: How many of them have a gold query; the others have an answer only.
        splitting: What made the splits.
        clusters: Questions by cluster, by split.
        bad: Lines that are no question, by what is wrong: databases that are missing or broken among them.
        gold_failed: Gold queries that do not run, by their error.
        gold_empty: Where gold finds nothing.
        twice: The same question on the same database again: its first place and the others.
        differing: The same question on the same database with another gold.
        leaked: Questions of `val` and `test` whose question or gold query is in `train`, too.
        together: Databases that are judged on together: those of one folder with the same tables.
    """

    files: Mapping[str, str]
    questions: int
    gold_queries: int
    databases: int
    splitting: str
    clusters: Mapping[str, Mapping[str, int]]
    bad: Sequence[Finding]
    gold_failed: Sequence[Finding]
    gold_empty: Sequence[str]
    twice: Sequence[Sequence[str]]
    differing: Sequence[Sequence[str]]
    leaked: Sequence[Sequence[str]]
    together: Sequence[Sequence[str]]

    def sizes(self, split: str) -> list[int]:
        """Questions of every cluster of a split; `all` is one, too."""
        chosen = self.clusters.values() if split == ALL else [self.clusters.get(split, {})]
        total: Counter[str] = Counter()
        for clusters in chosen:
            total.update(clusters)
        return list(total.values())


def check(tasks: FilesTasks, progress: Progress = lambda *_: None) -> Report:
    """Runs every gold query once and looks for what a training would stumble over.

    Raises:
        TaskSetError: A file is missing, damaged as a whole, or lacks a column.
    """
    found = tasks.collection
    questions = found.questions
    failed: dict[str, list[str]] = {}
    empty: list[str] = []
    golds: dict[tuple[Path, str], tuple[str, bool]] = {}
    for number, one in enumerate(questions, 1):
        if one.gold:
            key = (one.database, one.gold)
            if key not in golds:
                golds[key] = _run(*key)
            error, finds = golds[key]
            if error:
                failed.setdefault(error, []).append(place(tasks, one))
            elif not finds:
                empty.append(place(tasks, one))
        progress("running the gold queries", number, len(questions))
    bad: dict[str, list[str]] = {}
    for line in found.bad:
        bad.setdefault(line.problem, []).append(f"{line.path}, {line.where}")
    asked: dict[tuple[Path, str], list[Question]] = {}
    for one in questions:
        asked.setdefault((one.database, one.question), []).append(one)
    several = [group for group in asked.values() if len(group) > 1]
    return Report(
        files={role: str(path) for role, path in tasks.files.items()},
        questions=len(questions),
        gold_queries=sum(bool(one.gold) for one in questions),
        databases=len(found.names),
        splitting=found.splitting,
        clusters={
            split: dict(Counter(one.cluster for one in questions if one.split == split).most_common())
            for split in SPLITS
            if any(one.split == split for one in questions)
        },
        bad=[Finding(what, tuple(places)) for what, places in bad.items()],
        gold_failed=[Finding(what, tuple(places)) for what, places in failed.items()],
        gold_empty=empty,
        twice=[[place(tasks, one) for one in group] for group in several if len(_golds(group)) == 1],
        differing=[[place(tasks, one) for one in group] for group in several if len(_golds(group)) > 1],
        leaked=[[place(tasks, one) for one in pair] for pair in _leaked(questions)],
        together=sorted(
            {tuple(databases) for path in found.names if len(databases := databases_of(path)) > 1},
        ),
    )


def place(tasks: FilesTasks, one: Question) -> str:
    """Where a question stands, as in `questions.jsonl, line 3`."""
    return f"{tasks.files[one.file]}, {one.where}"


def _run(database: Path, gold: str) -> tuple[str, bool]:
    """Why a gold query fails on a database, or on one that is judged on with it, and whether it finds anything."""
    finds = False
    for path in databases_of(database):
        result = gold_result(path, gold, timeout_s=GOLD_S)
        if result.error is not None:
            return f"{Path(path).name}: {result.error}", False
        finds |= bool(result.rows)
    return "", finds


def _golds(group: Iterable[Question]) -> set[tuple[str, str]]:
    return {(one.gold, one.answer) for one in group}


def _leaked(questions: Sequence[Question]) -> list[tuple[Question, Question]]:
    """Questions outside of `train`, each with the one of `train` that gives it away."""
    known: dict[tuple[Path, str, str], Question] = {}
    for one in questions:
        if one.split == "train":
            known.setdefault((one.database, "question", one.question), one)
            if one.gold:
                known.setdefault((one.database, "gold", one.gold), one)
    return [
        (one, same)
        for one in questions
        if one.split != "train"
        and (same := known.get((one.database, "gold", one.gold)) or known.get((one.database, "question", one.question)))
    ]
