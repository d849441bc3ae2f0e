"""The reward `facts`: how many facts of the gold answer an answer states, minus invented ones."""

from __future__ import annotations

import asyncio
import math
import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from harness.records import Attempt, Task, Verdict
from harness_sql.rewards.gold import GoldFails, has_query, in_words, result_of

MAX_FACTS = 200
MAX_ANSWER_CHARS = 20_000

_SEPARATOR = re.compile(r"(?<!\d),|,(?!\d{3}(?!\d))|[、;\n]")
"""Separator of gold's items. A comma that groups digits is not a separator."""
_NUMBER = re.compile(
    r"(?<![a-z0-9_.])([-−+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?)"
    r"(?:\s?(%|万|亿|(?:thousand|million|billion)\b))?"
)
_UNITS = {
    "%": "0.01",
    "万": "1e4",
    "亿": "1e8",
    "thousand": "1e3",
    "million": "1e6",
    "billion": "1e9",
}
_LIST_MARK = re.compile(r"^[ \t]*(\d{1,3})[.)、](?=\s|[^\W\d])", re.MULTILINE)
_MAX_DIGITS = 40
_EXACT = Context(prec=3 * _MAX_DIGITS, rounding=ROUND_HALF_UP)


@dataclass(frozen=True, slots=True)
class Number:
    """A number as written.

    Attributes:
        digits: The number without its unit.
        unit: The factor. A percentage counts both as a share and as its digits.
    """

    digits: Decimal
    unit: Decimal

    @property
    def values(self) -> tuple[Decimal, ...]:
        value = _EXACT.multiply(self.digits, self.unit)
        return (value, self.digits) if self.unit < 1 else (value,)

    def states(self, value: Decimal) -> bool:
        """Return whether it is the value, exactly or rounded to the decimals shown."""
        decimals = -int(self.digits.as_tuple().exponent)
        for unit in {self.unit, Decimal(1)} if self.unit < 1 else {self.unit}:
            shown = _EXACT.divide(value, unit)
            if shown == self.digits:
                return True
            if (
                decimals
                and abs(shown) < 10**_MAX_DIGITS
                and shown.quantize(self.digits, context=_EXACT) == self.digits
            ):
                return True
        return False


class Facts:
    """Compare numbers as numbers and names as text, in Chinese and in English."""

    version = "facts/1"

    async def score(self, task: Task, attempt: Attempt) -> Verdict:
        """Return F1 over facts stated, facts missing and numbers invented.

        The attempt is unscored if gold has no facts.
        """
        try:
            facts = await asyncio.to_thread(facts_of, task)
        except GoldFails as error:
            return Verdict(None, str(error))
        if not 0 < len(facts) <= MAX_FACTS:
            return Verdict(None, f"gold has {len(facts)} facts, which is not 1 to {MAX_FACTS}")
        return _judged(
            facts, plain(task.question), plain((attempt.answer or "")[:MAX_ANSWER_CHARS])
        )


def facts_of(task: Task) -> list[str]:
    """Return `data["facts"]`, else the items of the gold answer, else the cells of its result.

    Raises:
        GoldFails: The gold query has no result.
    """
    given: Any = task.data.get("facts")
    if given is None and (words := in_words(task)):
        given = _SEPARATOR.split(plain(words))
    elif given is None and has_query(task):
        given = []
        for row in result_of(task).rows:
            given += [_written(cell) for cell in row if isinstance(cell, str | int | float)]
    facts = [plain(str(fact)).strip().rstrip(".。") for fact in given or ()]
    return list(dict.fromkeys(filter(None, facts)))


def _written(cell: str | float) -> str:
    """Return a cell as an answer would state it, without an exponent."""
    if isinstance(cell, float) and math.isfinite(cell):
        return f"{Decimal(repr(cell)):f}"
    return str(cell)


def plain(text: str) -> str:
    """Normalize text for comparison: NFKC (full-width digits become plain) and lower case."""
    return unicodedata.normalize("NFKC", text).casefold()


def numbers_of(text: str) -> list[Number]:
    """Return every number in a plain text. A number with too many digits counts as a name."""
    numbers = map(_number, _NUMBER.finditer(text))
    return [number for number in numbers if number is not None]


def _number(found: re.Match[str]) -> Number | None:
    if len(found[1]) > _MAX_DIGITS:
        return None
    digits = Decimal(found[1].replace(",", "").replace("−", "-"))
    return Number(digits, Decimal(_UNITS.get(found[2], "1")))


def _judged(facts: list[str], question: str, answer: str) -> Verdict:
    # The numbers of a list are no facts. Only numbers that count from 1 on are those of a list.
    marks = list(map(int, _LIST_MARK.findall(answer)))
    if len(marks) > 1 and marks == list(range(1, len(marks) + 1)):
        answer = _LIST_MARK.sub(" ", answer)
    numbers = numbers_of(answer)
    words = " ".join(answer.split())
    stated = sum(_is_stated(fact, words, numbers) for fact in facts)
    # Numbers of the question count as known: an answer may repeat them, as in "the top 5 are".
    grounded: list[Decimal] = []
    for text in (*facts, question):
        for number in numbers_of(text):
            grounded += number.values
    inventions = set()
    for number in numbers:
        if not any(map(number.states, grounded)):
            inventions.add(number.values[0])
    invented = len(inventions)
    parts = {
        "recall": stated / len(facts),
        "precision": stated / (stated + invented) if stated else 0.0,
    }
    reason = (
        f"states {stated} of {len(facts)} facts, makes up {invented} number{'s' * (invented != 1)}"
    )
    return Verdict(2 * stated / (stated + len(facts) + invented), reason, parts)


def _is_stated(fact: str, words: str, numbers: Collection[Number]) -> bool:
    match = _NUMBER.fullmatch(fact)
    number = _number(match) if match else None
    if number is not None:
        return any(stated.states(value) for stated in numbers for value in number.values)
    fact = " ".join(fact.split())
    before = r"(?<![a-z0-9])" if fact[0].isascii() and fact[0].isalnum() else ""
    after = r"(?![a-z0-9])" if fact[-1].isascii() and fact[-1].isalnum() else ""
    return re.search(before + re.escape(fact) + after, words) is not None
