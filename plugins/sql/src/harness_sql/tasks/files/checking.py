"""Check files of questions before training on them. Nothing is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness_sql.sqlite.databases import databases_of
from harness_sql.sqlite.evaluator import gold_result, prepared
from harness_sql.sqlite.gold import GoldResult
from harness_sql.sqlite.lexer import order_counts
from harness_sql.sqlite.sandbox import Limits, execute
from harness_sql.tasks.files import ALL, FilesTasks
from harness_sql.tasks.files.questions import SPLITS, Question

Progress = Callable[[str, int, int], None]
"""Callback with the current activity, its progress and its total."""
GOLD_S = 5.0
"""Deadline of gold: half of the default deadline of a verdict."""
AGAIN_S, AGAIN_ROWS = 0.5, 10_000
"""Maximum time and number of rows of a gold result to run its query a second time."""
_DIGITS = 9
"""Significant digits in comparisons. The last digits of a sum depend on the order of addition."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem with all its places, such as `questions.jsonl, line 3`."""

    what: str
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of a check.

    Attributes:
        questions: Number of good questions.
        gold_queries: Number of questions with a gold query. The others have only an answer.
        splitting: How the splits were made.
        clusters: Number of questions by cluster, by split.
        bad: Invalid lines by problem, including missing or broken databases.
        gold_failed: Gold queries that fail, by error.
        gold_empty: Places of gold queries with an empty result.
        gold_differs: Places of gold queries with another result when unordered rows are reversed.
        gold_order: Gold queries for which the order of rows counts and is not stated, or the
            reverse, by problem.
        gold_changing: Gold queries that read the clock or a random number, by that input.
        twice: Repeated questions on the same database: the first place and the others.
        differing: Repeated questions on the same database with different golds.
        leaked: Questions of `val` and `test` that share a question or gold query with `train`.
        together: Databases that are judged together: those in one folder with the same tables.
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
    gold_differs: Sequence[str]
    gold_order: Sequence[Finding]
    gold_changing: Sequence[Finding]
    twice: Sequence[Sequence[str]]
    differing: Sequence[Sequence[str]]
    leaked: Sequence[Sequence[str]]
    together: Sequence[Sequence[str]]

    def sizes(self, split: str) -> list[int]:
        """Return the number of questions in every cluster of a split, which may be `all`."""
        chosen = self.clusters.values() if split == ALL else [self.clusters.get(split, {})]
        total: Counter[str] = Counter()
        for clusters in chosen:
            total.update(clusters)
        return list(total.values())


def check(tasks: FilesTasks, progress: Progress = lambda *_: None) -> Report:
    """Run every gold query, fast ones twice, and look for problems for a training.

    Raises:
        TaskSetError: A file is missing, damaged as a whole, or lacks a column.
    """
    collection = tasks.collection
    questions = collection.questions
    failed: dict[str, list[str]] = {}
    empty: list[str] = []
    differs: list[str] = []
    changing: dict[str, list[str]] = {}
    # Many questions repeat a query on the same database, and a gold query may take seconds.
    golds: dict[tuple[Path, str], _Gold] = {}
    gold_queries = 0
    for number, one in enumerate(questions, 1):
        if one.gold:
            gold_queries += 1
            key = (one.database, one.gold)
            if key not in golds:
                golds[key] = _run(*key)
            gold = golds[key]
            if gold.error:
                failed.setdefault(gold.error, []).append(place(tasks, one))
            elif not gold.finds:
                empty.append(place(tasks, one))
            if gold.differs:
                differs.append(place(tasks, one))
            for what in gold.changing:
                changing.setdefault(what, []).append(place(tasks, one))
        progress("running the gold queries", number, len(questions))
    order: dict[str, list[str]] = {}
    for problem, misread in tasks.order_problems.items():
        order[problem] = _places(tasks, misread)
    bad: dict[str, list[str]] = {}
    for line in collection.bad:
        bad.setdefault(line.problem, []).append(f"{line.path}, {line.where}")
    twice, differing = _repeated(tasks, questions)
    return Report(
        files={role: str(path) for role, path in tasks.files.items()},
        questions=len(questions),
        gold_queries=gold_queries,
        databases=len(collection.names),
        splitting=collection.splitting,
        clusters=_clusters(questions),
        bad=_findings(bad),
        gold_failed=_findings(failed),
        gold_empty=empty,
        gold_differs=differs,
        gold_order=_findings(order),
        gold_changing=_findings(changing),
        twice=twice,
        differing=differing,
        leaked=[_places(tasks, pair) for pair in _leaked(questions)],
        together=_together(collection.names),
    )


def _findings(places: Mapping[str, Sequence[str]]) -> list[Finding]:
    return [Finding(what, tuple(where)) for what, where in places.items()]


def _places(tasks: FilesTasks, questions: Iterable[Question]) -> list[str]:
    return [place(tasks, question) for question in questions]


def _clusters(questions: Sequence[Question]) -> dict[str, dict[str, int]]:
    """Return the number of questions by cluster, largest first, of every split that has any."""
    clusters = {}
    for split in SPLITS:
        sizes = Counter(one.cluster for one in questions if one.split == split)
        if sizes:
            clusters[split] = dict(sizes.most_common())
    return clusters


def _repeated(
    tasks: FilesTasks, questions: Sequence[Question]
) -> tuple[list[list[str]], list[list[str]]]:
    """Return the places of repeated questions: those with one gold, and those with several."""
    groups: dict[tuple[Path, str], list[Question]] = {}
    for one in questions:
        groups.setdefault((one.database, one.question), []).append(one)
    twice: list[list[str]] = []
    differing: list[list[str]] = []
    for group in groups.values():
        if len(group) == 1:
            continue
        # Without a single gold, a correct answer to one of them is wrong for another.
        golds = {(one.gold, one.answer) for one in group}
        (twice if len(golds) == 1 else differing).append(_places(tasks, group))
    return twice, differing


def _together(databases: Iterable[Path]) -> list[tuple[str, ...]]:
    """Return the groups of databases that are judged together."""
    groups = set()
    for path in databases:
        siblings = tuple(databases_of(path))
        if len(siblings) > 1:
            groups.add(siblings)
    return sorted(groups)


def place(tasks: FilesTasks, one: Question) -> str:
    """Return the place of a question, such as `questions.jsonl, line 3`."""
    return f"{tasks.files[one.file]}, {one.where}"


def gold_error(database: str | Path, gold: str) -> str:
    """Return the first error of a gold query on a database or its siblings, or an empty string."""
    for _, _, error in _results(database, gold):
        if error:
            return error
    return ""


def _results(database: str | Path, gold: str) -> Iterator[tuple[str, GoldResult, str]]:
    """Yield path, result and error message of a gold query for each database it is judged on."""
    for path in databases_of(database):
        result = gold_result(path, gold, timeout_s=GOLD_S)
        yield path, result, "" if result.error is None else f"{Path(path).name}: {result.error}"


@dataclass(frozen=True, slots=True)
class _Gold:
    """The outcome of a gold query on a database and its siblings."""

    error: str = ""
    finds: bool = False
    differs: bool = False
    changing: tuple[str, ...] = ()


def _run(database: Path, gold: str) -> _Gold:
    finds = differs = False
    sql = prepared(gold, keep_distinct=False)[0]
    changing: set[str] = set()
    for path, result, error in _results(database, gold):
        if error:
            return _Gold(error)
        finds |= bool(result.rows)
        changing |= result.changing
        if (
            not changing
            and not differs
            and result.elapsed_s <= AGAIN_S
            and len(result.rows) <= AGAIN_ROWS
        ):
            differs = _differs(path, sql, result)
    return _Gold("", finds, differs, tuple(sorted(changing)))


def _differs(path: str | Path, sql: str, first: GoldResult) -> bool:
    """Return whether a query gives another result when rows without ORDER BY are reversed.

    Results are compared as for verdicts.
    """
    size = 2 * first.size_bytes + (1 << 16)
    room = Limits(
        GOLD_S,
        len(first.rows) + 1,
        max_result_bytes=size,
        max_value_bytes=1_000_000,
        reversed_rows=True,
    )
    again = execute(path, sql, room)
    if not again.ok:
        return False
    first_rows, rows_again = _rounded_rows(first.rows), _rounded_rows(again.rows)
    # With ORDER BY the query states an order, so another one is another answer.
    if order_counts(sql):
        return first_rows != rows_again
    return Counter(first_rows) != Counter(rows_again)


def _rounded_rows(rows: Iterable[Sequence[object]]) -> list[tuple[object, ...]]:
    return [tuple(map(_rounded, row)) for row in rows]


def _rounded(cell: object) -> object:
    return float(f"{cell:.{_DIGITS}g}") if isinstance(cell, float) else cell


def _leaked(questions: Sequence[Question]) -> list[tuple[Question, Question]]:
    """Return questions outside of `train`, each with the question of `train` that leaks it."""
    trained: dict[tuple[Path, str, str], Question] = {}
    for one in questions:
        if one.split == "train":
            trained.setdefault((one.database, "question", one.question), one)
            if one.gold:
                trained.setdefault((one.database, "gold", one.gold), one)
    pairs = []
    for one in questions:
        if one.split == "train":
            continue
        # A shared gold query goes first: it leaks the answer also of a question in other words.
        same = trained.get((one.database, "gold", one.gold))
        if same is None:
            same = trained.get((one.database, "question", one.question))
        if same is not None:
            pairs.append((one, same))
    return pairs
