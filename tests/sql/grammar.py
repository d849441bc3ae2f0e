"""Hostile SQL by seed: what a grammar makes, whole, broken or repeated, and what bytes make."""

from __future__ import annotations

import random

SCHEMA = """
CREATE TABLE t (a INTEGER, b TEXT, c REAL);
CREATE TABLE u (a INTEGER REFERENCES t (a), d BLOB, e TEXT);
CREATE VIEW v AS SELECT a, count(*) AS n FROM t GROUP BY a;
INSERT INTO t VALUES (1, 'x', 1.5), (2, 'y', 2.0), (2, 'y', NULL), (NULL, CAST(x'ff' AS TEXT), 9e999);
INSERT INTO u VALUES (1, x'00ff', 'x'), (2.5, 'x', ''), (3, NULL, '[1, {"k": 2}]');
"""
_TABLES = {
    "t": "a b c rowid", "u": "a d e", "v": "a n", "main.t": "a c", "sqlite_master": "name sql",
    "json_each('[1,2]')": "key value", "pragma_table_info('t')": "name cid",
}  # fmt: skip
_FUNCTIONS = (
    "random row_number rank count sqlite_version changes",
    "abs hex upper lower length trim round typeof quote unicode char zeroblob randomblob sum avg min max total count "
    "group_concat date strftime julianday json json_each soundex load_extension ntile json_group_array likely",
    "instr trim ltrim rtrim substr printf format round coalesce ifnull nullif max min json_extract json_patch like "
    "glob group_concat strftime char likelihood lag json_remove json_object",
    "replace substr iif printf json_set json_insert coalesce like lead json_array char",
)
"""By number of arguments."""
_OPERATORS = (
    *"+ - * / % || = == != <> < <= > >= AND OR IS LIKE GLOB -> ->> << >> & |".split(),
    *("IS NOT", "NOT LIKE", "COLLATE NOCASE ="),
)
_LITERALS = (
    "0 1 2 -1 1.5 9e999 -9e999 1e-400 0x7f 9223372036854775807 -9223372036854775808 18446744073709551616 NULL 'x' 'y' "
    "'' '%' x'00ff' '[1,2]' '{\"k\":1}' '$.k' '$[0]' CURRENT_TIMESTAMP TRUE '%d' '%*d' '%999999999d' '%.*s' 'now' "
    "200000 '%%%%'"
).split()
_ODD = '? :p @q $r ?1 nosuch t.nosuch (SELECT) * "x" [a] `b` MATCH REGEXP'.split()
_STATEMENTS = (
    "INSERT INTO t VALUES (1)", "DELETE FROM t", "UPDATE t SET a = 1", "DROP TABLE t", "PRAGMA table_info(t)", "BEGIN",
    "PRAGMA user_version = 4", "ATTACH 'n.db' AS n", "VACUUM", "EXPLAIN QUERY PLAN SELECT a FROM t", "REINDEX",
    "CREATE TEMP TABLE k (x)", "ANALYZE", ";", "--", "/*", "RELEASE x", "PRAGMA integrity_check",
)  # fmt: skip
_JOINTS = (
    " UNION ALL ", ", ", " AND ", " ", "", "(", " SELECT ", ";", ") ", " FROM (", " || ", "\n", " OR NOT ", " JOIN ",
    ".", "--", "/*",
)  # fmt: skip
_MARKS = b"()'\"`[];,.*-+/%|=<>?:@$#&~!\\\0\n\t "


def from_grammar(rng: random.Random) -> str:
    """A query, about half of them valid; or one that is broken, repeats itself, or follows a statement."""
    made = _Grammar(rng).query(rng.choice((0, 1, 1, 2, 2, 3)))
    kind, words = rng.random(), made.split(" ")
    if kind < 0.6:
        return made
    if kind < 0.75:
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(words))
            new = rng.choice(
                ("(", ")", "", rng.choice(words), rng.choice(_STATEMENTS), "WITH", ",", "AS", "'")
            )
            words[at : at + rng.choice((0, 1, 1, 4))] = [new]
        return " ".join(words)
    if kind < 0.9:
        length = int(10 ** rng.uniform(1, 4.5))
        part = " ".join(
            words[rng.randrange(len(words)) :][: rng.choice((1, 2, 3, 8, 99))]
        ) + rng.choice(_JOINTS)
        return rng.choice(("", f"{made} ", "SELECT ")) + part * max(2, length // max(1, len(part)))
    statement = rng.choice(_STATEMENTS)
    return f"{statement} {made}" if kind < 0.95 else f"{made}; {statement}"


def from_bytes(rng: random.Random) -> str:
    """Bytes as text: random ones, marks, a few repeated, and queries in which some are changed."""
    kind = rng.random()
    if kind < 0.35:
        data = rng.randbytes(int(10 ** rng.uniform(0, 2.2)))
    elif kind < 0.5:
        data = bytes(rng.choices(_MARKS, k=rng.randint(1, 80)))
    elif kind < 0.6:
        data = rng.randbytes(rng.randint(1, 3)) * int(10 ** rng.uniform(0, 4.4))
    else:
        changed = bytearray(_Grammar(rng).query(1), "utf-8")
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(changed) + 1)
            changed[at : at + rng.choice((0, 1, 2))] = rng.randbytes(rng.choice((0, 1, 2)))
        data = bytes(changed)
    codec, errors = rng.choice(
        (("latin-1", ""), ("utf-8", "surrogateescape"), ("utf-8", "replace"), ("utf-16", ""))
    )
    return data.decode(codec, errors or "replace")


class _Grammar:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.columns = ["1"]
        self.tables = dict(_TABLES)

    def query(self, depth: int, width: int = 0) -> str:
        rng, outer = self.rng, self.tables
        width = width or rng.choice((1, 1, 2, 2, 3))
        parts: list[str] = []
        for name in rng.sample("wxyz", rng.choice((1, 1, 2, 3))) if rng.random() < 0.2 else ():
            columns = "abc"[: rng.choice((1, 2, 3))]
            kept = rng.choice(("", "", "MATERIALIZED ", "NOT MATERIALIZED "))
            parts.append(
                f"{name}({', '.join(columns)}) AS {kept}({self.query(depth - 1, len(columns))})"
            )
            self.tables = {**self.tables, name: " ".join(columns)}
        text = self.select(depth, width)
        for _ in range(rng.choice((0, 0, 0, 0, 1, 2))):
            text += rng.choice((" UNION ", " UNION ALL ", " EXCEPT ", " INTERSECT ")) + self.select(
                depth, width
            )
        if text.startswith("SELECT"):
            text += rng.choice(
                (f" ORDER BY {rng.randint(1, width)}" + rng.choice(("", " DESC")), "", "")
            )
            text += rng.choice(
                (f" LIMIT {rng.choice((0, 1, 2, -1))}" + rng.choice(("", " OFFSET 1")), "", "")
            )
        self.tables = outer
        return f"WITH {rng.choice(('', 'RECURSIVE '))}{', '.join(parts)} {text}" if parts else text

    def select(self, depth: int, width: int) -> str:
        rng, outer = self.rng, self.columns
        if rng.random() < 0.05:
            return f"VALUES ({self.several(width, depth - 1)})"
        sources = self.sources(depth) if rng.random() < 0.9 else ""
        text = (
            "SELECT " + rng.choice(("", "", "", "DISTINCT ")) + self.several(width, depth) + sources
        )
        if rng.random() < 0.5:
            text += " WHERE " + self.value(depth)
        if rng.random() < 0.2:
            text += (
                " GROUP BY "
                + rng.choice(self.columns)
                + rng.choice(("", " HAVING " + self.value(depth - 1)))
            )
        self.columns = outer
        return text

    def sources(self, depth: int) -> str:
        rng, found, text = self.rng, list[str](), " FROM "
        for position in range(rng.choice((1, 1, 1, 2, 3))):
            if position:
                text += rng.choice((", ", " JOIN ", " LEFT JOIN ", " NATURAL JOIN ", " FULL JOIN "))
            name = f"{rng.choice('opqs')}{position}"
            if depth > 0 and rng.random() < 0.15:
                text += f"({self.query(depth - 1)}) AS {name}"
                continue
            table = rng.choice((*self.tables, "t", "t"))
            text += f"{table} AS {name}"
            found += [f"{name}.{column}" for column in self.tables[table].split()]
        self.columns = [*found, *rng.choices(self.columns)]
        return text

    def value(self, depth: int) -> str:
        rng = self.rng
        if rng.random() < 0.004:
            return rng.choice(_ODD)
        kind = rng.randrange(14) if depth > 0 else rng.randrange(2)
        if kind == 0:
            return rng.choice(_LITERALS)
        if kind == 1:
            return rng.choice(self.columns)
        if kind < 5:
            return f"{self.value(depth - 1)} {rng.choice(_OPERATORS)} {self.value(depth - 1)}"
        if kind < 7:
            count = rng.choice((0, 1, 1, 1, 2, 2, 3))
            over = rng.choice((*[""] * 7, " OVER (ORDER BY 1)", " FILTER (WHERE 1)"))
            return (
                f"{rng.choice(_FUNCTIONS[count].split())}({self.several(count, depth - 1)}){over}"
            )
        if kind == 7:
            return f"CASE WHEN {self.value(depth - 1)} THEN {self.value(depth - 1)} ELSE {self.value(depth - 1)} END"
        if kind == 8:
            return f"CAST({self.value(depth - 1)} AS {rng.choice(('TEXT', 'INTEGER', 'BLOB', 'REAL', 'NUMERIC'))})"
        if kind == 9:
            return f"({self.query(depth - 1, 1)})"
        if kind == 10:
            return f"{self.value(depth - 1)} IN ({rng.choice((self.several(2, 0), self.query(depth - 2, 1)))})"
        if kind == 11:
            return f"{rng.choice(('', 'NOT '))}EXISTS ({self.query(depth - 2)})"
        if kind == 12:
            return f"{self.value(depth - 1)} BETWEEN {self.value(0)} AND {self.value(0)}"
        return f"{rng.choice(('-', '~', 'NOT ', '+'))}({self.value(depth - 1)})"

    def several(self, count: int, depth: int) -> str:
        return ", ".join(self.value(depth) for _ in range(count))
