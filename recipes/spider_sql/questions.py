"""The questions to pre-train on: Spider's training questions in one style of SQL, with wrong queries beside them."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from harness.records import Task
from harness_sql.sqlite.environment import database_of
from harness_sql.sqlite.evaluator import evaluate
from harness_sql.sqlite.lexer import tokenize
from harness_sql.sqlite.sandbox import AGENT_LIMITS, execute
from harness_sql.sqlite.schema import Column, tables_of

Tables = dict[str, list[Column]]

_KEYWORDS = frozenset(
    """select distinct from as join left right outer inner cross natural on where and or not in like between is null
    group order by having limit offset desc asc union intersect except all exists case when then else end cast
    count avg sum max min abs round length lower upper substr""".split()
)
_ALIAS = re.compile(r"t\d+", re.IGNORECASE)
_OPPOSITES = {
    ">": "<",
    "<": ">",
    ">=": "<",
    "<=": ">",
    "=": "!=",
    "!=": "=",
    "DESC": "ASC",
    "ASC": "DESC",
}
_AGGREGATES = ("AVG", "SUM", "MAX", "MIN", "COUNT")


@dataclass(frozen=True, slots=True)
class Wrong:
    """A query that does not answer the question.

    Attributes:
        sql: The query.
        shown: Its result as an agent sees it.
        remark: What a check says about it.
    """

    sql: str
    shown: str
    remark: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its right query and some wrong ones.

    Attributes:
        tables: The whole schema of its database.
        shown: The right query's result as an agent sees it.
    """

    text: str
    sql: str
    tables: Tables
    shown: str
    wrong: tuple[Wrong, ...] = ()


def canonical(sql: str, tables: Tables) -> str:
    """The same query in one style: keywords in capitals, names as the schema spells them, single spaces."""
    names = {column.name.lower(): column.name for columns in tables.values() for column in columns}
    names |= {table.lower(): table for table in tables}
    parts: list[str] = []
    for token in tokenize(sql):
        text = token.text
        if token.kind in ("space", "comment"):
            text = " "
        elif token.kind == "word":
            low = text.lower()
            if low in _KEYWORDS and (low not in names or parts[-1:] != ["."]):
                text = low.upper()
            else:
                text = text.upper() if _ALIAS.fullmatch(text) else names.get(low, text)
        elif token.kind == "name":
            inner = text[1:-1]
            if text[0] == '"' and inner.lower() not in names:
                text = "'" + inner.replace("'", "''") + "'"
        parts.append(text)
    return _spaced("".join(parts))


def _spaced(sql: str) -> str:
    """White space in one way, strings left alone."""
    pieces = re.split(r"('(?:[^']|'')*')", sql)
    for place in range(0, len(pieces), 2):
        text = re.sub(r"\s*(<=|>=|!=|<>|=|<|>)\s*", r" \1 ", pieces[place])
        text = re.sub(r"\s*,\s*", ", ", text)
        text = re.sub(r"\(\s+", "(", re.sub(r"\s+\)", ")", text))
        text = re.sub(r"\b(COUNT|AVG|SUM|MAX|MIN) \(", r"\1(", text)
        pieces[place] = re.sub(r"\s+", " ", text)
    return "".join(pieces).strip().rstrip(";").strip()


def prepared(tasks: Sequence[Task], workers: int) -> list[tuple[Task, Question]]:
    """Questions of tasks with a gold query; those whose query changes its result in the common style are left out.

    Args:
        workers: Processes.
    """
    if workers == 1:
        found = list(map(_prepare, tasks))
    else:
        with multiprocessing.get_context("spawn").Pool(workers) as pool:
            found = pool.map(_prepare, tasks, chunksize=20)
    return [
        (task, question)
        for task, question in zip(tasks, found, strict=True)
        if question is not None
    ]


def _prepare(task: Task) -> Question | None:
    tables = tables_of(Path(database_of(task)))
    sql = canonical(task.gold, tables)
    if not evaluate(database_of(task), task.gold, sql).match:
        return None
    question = Question(task.question, sql, tables, _shown(database_of(task), sql))
    rng = Random(task.id)
    return replace(question, wrong=tuple(wrong_queries(database_of(task), question, rng)))


def wrong_queries(db_path: str, question: Question, rng: Random, count: int = 3) -> Iterable[Wrong]:
    """Up to `count` queries with one thing wrong, each with another result than the right one."""
    tried = {question.sql}
    made = 0
    for _ in range(4 * count):
        sql, remark = rng.choice(
            (_other_name, _other_name, _opposite, _less, _other_aggregate, _misspelt)
        )(question, rng)
        if made == count or sql in tried:
            continue
        tried.add(sql)
        shown = _shown(db_path, sql)
        if shown != question.shown:
            made += 1
            yield Wrong(sql, shown, remark)


def _shown(db_path: str, sql: str) -> str:
    return execute(db_path, sql, AGENT_LIMITS).text


def _other_name(question: Question, rng: Random) -> tuple[str, str]:
    """A column changed for another one of the same table."""
    used = [
        (column.name, [other.name for other in columns if other.name != column.name])
        for columns in question.tables.values()
        for column in columns
        if column.name.isidentifier() and re.search(rf"\b{column.name}\b", question.sql)
    ]
    used = [(name, others) for name, others in used if others]
    if not used:
        return question.sql, ""
    name, others = rng.choice(used)
    return re.sub(
        rf"\b{name}\b", lambda _: rng.choice(others), question.sql, count=1
    ), "It uses the wrong column."


def _opposite(question: Question, rng: Random) -> tuple[str, str]:
    found = list(
        re.finditer(
            r"(?<= )(>=|<=|!=|>|<|=|DESC|ASC)(?= |$)",
            re.sub(r" ON \S+ = \S+", _blank, question.sql),
        )
    )
    if not found:
        return question.sql, ""
    match = rng.choice(found)
    remark = (
        "The order is the wrong way round."
        if match.group() in ("DESC", "ASC")
        else "The condition is wrong."
    )
    return question.sql[: match.start()] + _OPPOSITES[match.group()] + question.sql[
        match.end() :
    ], remark


def _blank(match: re.Match[str]) -> str:
    return "#" * len(match.group())


def _less(question: Question, rng: Random) -> tuple[str, str]:
    """The last clause left out."""
    places = [
        m.start()
        for m in re.finditer(
            r" (WHERE|AND|GROUP BY|HAVING|ORDER BY|LIMIT|INTERSECT|EXCEPT|UNION) ", question.sql
        )
    ]
    return (
        (question.sql[: places[-1]], "A part of the question is missing.")
        if places
        else (question.sql, "")
    )


def _other_aggregate(question: Question, rng: Random) -> tuple[str, str]:
    match = re.search(r"\b(AVG|SUM|MAX|MIN)\(", question.sql)
    if match is None:
        return question.sql, ""
    name = rng.choice([one for one in _AGGREGATES if one != match.group(1)])
    return question.sql[: match.start(1)] + name + question.sql[
        match.end(1) :
    ], "It uses the wrong function."


def _misspelt(question: Question, rng: Random) -> tuple[str, str]:
    names = [
        c.name
        for columns in question.tables.values()
        for c in columns
        if re.search(rf"\b{re.escape(c.name)}\b", question.sql)
    ]
    names = [name for name in names if len(name) > 3 and name.isidentifier()]
    if not names:
        return question.sql, ""
    name = rng.choice(names)
    cut = rng.randrange(1, len(name))
    spelt = rng.choice((name[:cut] + name[cut + 1 :], name + "s", name.split("_")[0] + "_name"))
    return re.sub(rf"\b{name}\b", spelt, question.sql), "It uses a name that is not in the schema."
