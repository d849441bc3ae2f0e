"""The part of SQLite's lexical rules that finds words outside strings, names and comments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

TokenKind = Literal["space", "comment", "string", "name", "number", "word", "mark"]


class Token(NamedTuple):
    """A token of a query. The texts of all tokens, joined, are the query.

    `string` is in single quotes, `name` in double quotes, back quotes or brackets; one without a
    closing
    quote extends to the end. `word` is a keyword or a bare name, `mark` any other single character.
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
    """Yield the tokens of a query, without loss."""
    for found in _TOKEN.finditer(sql):
        kind: TokenKind = found.lastgroup  # type: ignore[assignment]
        yield Token(kind, found.group())


def split_statements(sql: str) -> list[str]:
    """Return the statements of a script, each with its semicolon.

    Trailing white space and comments are not a statement. Statements that contain semicolons
    (triggers)
    are split inside, which is harmless because they are never executed.
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


def order_counts(sql: str) -> bool:
    """Return whether the order of rows counts, by the rule of the reference evaluator.

    It looks for the text alone, also in strings and comments, with a single space.
    """
    return "order by" in sql.lower()


def states_order(sql: str) -> bool:
    """Return whether a query has the keywords ORDER BY, whatever is between the two."""
    if "order" not in sql.lower():
        return False
    before = ""
    for token in tokenize(sql):
        if token.kind in ("space", "comment"):
            continue
        word = token.text.lower() if token.kind == "word" else ""
        if before == "order" and word == "by":
            return True
        before = word
    return False


def without_distinct(sql: str) -> str:
    """Return the query without the word DISTINCT, except in the operator IS [NOT] DISTINCT FROM."""
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
