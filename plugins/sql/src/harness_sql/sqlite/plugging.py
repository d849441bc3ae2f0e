"""Predictions with gold's values in place of their own, for scoring without value prediction.

Source: `get_all_preds_for_execution` of taoyds/test-suite-sql-eval. As there, everything in single or double
quotes and every bare number (LIMIT's included) is a value.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from harness_sql.sqlite.lexer import Token, tokenize


def plugged(gold: str, pred: str) -> Iterator[str]:
    """The prediction with its values replaced by gold's, in every way; nothing if gold has no values."""
    gold_tokens, slots_of_gold = _with_values(gold)
    values = list(dict.fromkeys(gold_tokens[slot] for slot in slots_of_gold))
    tokens, slots = _with_values(pred)
    for filling in itertools.product(values, repeat=len(slots)):
        for slot, value in zip(slots, filling, strict=True):
            tokens[slot] = value
        yield "".join(tokens)


def _with_values(sql: str) -> tuple[list[str], list[int]]:
    """The texts of a query's tokens, and which of them are values; a sign belongs to its number."""
    texts: list[str] = []
    slots: list[int] = []
    last: Token | None = None
    for token in tokenize(sql):
        text = token.text
        if token.kind in ("string", "number") or (token.kind == "name" and text.startswith('"')):
            if (
                token.kind == "number"
                and texts
                and texts[-1] in ("-", "+")
                and not _is_operand(last)
            ):
                text = texts.pop() + text
            slots.append(len(texts))
        texts.append(text)
        if token.kind not in ("space", "comment") and text not in ("-", "+"):
            last = token
    return texts, slots


def _is_operand(token: Token | None) -> bool:
    """Whether a sign after this token would be an operator between two values."""
    if token is None:
        return False
    if token.kind == "word":
        return token.text.lower() not in {
            "where",
            "and",
            "or",
            "not",
            "in",
            "like",
            "between",
            "limit",
            "select",
            "by",
        }
    return token.kind in ("number", "string", "name") or token.text == ")"
