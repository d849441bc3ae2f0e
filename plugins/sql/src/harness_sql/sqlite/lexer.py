"""Just enough of SQLite's lexical rules to find words outside strings, names and comments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

TokenKind = Literal["space", "comment", "string", "name", "number", "word", "mark"]


class Token(NamedTuple):
    """A piece of a query; the texts of all tokens joined are the query.

    `string` is in single quotes, `name` in double quotes, back quotes or brackets; one that is never
    closed runs to the end. `word` is a keyword or a bare name, `mark` one character of anything else.
    """

    kind: TokenKind
    text: str


_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<comment>--[^\n]*(?:\n|\Z)|/\*.*?(?:\*/|\Z))
    |(?P<string>[xX]?'(?:[^']|'')*(?:'|\Z))
    |(?P<name>"(?:[^"]|"")*(?:"|\Z)|`(?:[^`]|``)*(?:`|\Z)|\[[^\]]*(?:\]|\Z))
    |(?P<number>0[xX][0-9a-fA-F]+|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<word>[^\W\d][\w$]*)
    |(?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)


def tokenize(sql: str) -> Iterator[Token]:
    """The tokens of a query, losslessly."""
    for found in _TOKEN.finditer(sql):
        kind: TokenKind = found.lastgroup  # type: ignore[assignment]
        yield Token(kind, found.group())


def split_statements(sql: str) -> list[str]:
    """The statements of a script, each with its semicolon; a rest of white space and comments is no statement.

    Statements that contain semicolons (triggers) are cut apart: nothing here runs them.
    """
    statements: list[str] = []
    parts: list[str] = []
    empty = True
    for token in tokenize(sql):
        parts.append(token.text)
        empty = empty and token.kind in ("space", "comment")
        if token.text == ";" and token.kind == "mark":
            statements.append("".join(parts))
            parts, empty = [], True
    if not empty:
        statements.append("".join(parts))
    return statements


def without_distinct(sql: str) -> str:
    """The query without the word DISTINCT, except in the operator IS [NOT] DISTINCT FROM."""
    if "distinct" not in sql.lower():
        return sql
    kept: list[str] = []
    before = ("", "")
    for token in tokenize(sql):
        word = token.text.lower() if token.kind == "word" else ""
        if word == "distinct" and not (before[1] == "is" or before == ("is", "not")):
            continue
        kept.append(token.text)
        if token.kind not in ("space", "comment"):
            before = (before[1], word)
    return "".join(kept)
