"""Replace a prediction's values by gold's, for scoring without value prediction.

Source: `get_all_preds_for_execution` of taoyds/test-suite-sql-eval. As there, everything in single
or double quotes and every bare number (including LIMIT's) is a value.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from harness_sql.sqlite.lexer import Token, tokenize


def plugged(gold: str, pred: str) -> Iterator[str]:
    """Yield the prediction with every combination of gold's values; none if gold has no values."""
    gold_tokens, slots_of_gold = _with_values(gold)
    values = list(dict.fromkeys(gold_tokens[slot] for slot in slots_of_gold))
    tokens, slots = _with_values(pred)
    for filling in itertools.product(values, repeat=len(slots)):
        for slot, value in zip(slots, filling, strict=True):
            tokens[slot] = value
        yield "".join(tokens)


def _with_values(sql: str) -> tuple[list[str], list[int]]:
    """Return a query's token texts and the indexes of values. A sign belongs to its number."""
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
    """Return whether a sign after this token would be a binary operator."""
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
