"""Check whether two results are the same table up to the order of columns and, optionally, of rows.

Gives the verdict that the Spider test-suite evaluator finds by trying permutations, for any number
of columns. Columns that differ in their values are matched directly; only the others are searched.

Source: Zhong et al. 2020, "Semantic Evaluation for Text-to-SQL with Distilled Test Suites";
`result_eq` of taoyds/test-suite-sql-eval.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

Row = tuple[Any, ...]

SEARCH_TIMEOUT_S = 2.0


def same_result(
    gold: Sequence[Row], pred: Sequence[Row], *, ordered: bool, timeout_s: float = SEARCH_TIMEOUT_S
) -> bool | None:
    """Return whether `pred` equals `gold` in some order of columns (and rows, unless `ordered`).

    Cells are equal as Python values are: `1 == 1.0`, `1 != '1'`, NULL equals NULL.

    Args:
        gold: Rows, `[rows][columns]`.
        pred: Rows, `[rows][columns]`.
        ordered: Whether the order of rows matters.
        timeout_s: Time limit of the search through column orders that the values leave open.

    Returns:
        The verdict, or None if the time limit passed first.
    """
    if len(gold) != len(pred):
        return False
    if not gold:
        return True
    if len(gold[0]) != len(pred[0]):
        return False
    if gold == pred:
        return True
    width = len(gold[0])
    if ordered:
        return width > 1 and Counter(zip(*gold, strict=True)) == Counter(zip(*pred, strict=True))
    if Counter(gold) == Counter(pred):
        return True
    return False if width == 1 else _Search(gold, pred, timeout_s).decide()


FLOAT_DIGITS = 1e-9
"""Relative tolerance: floats that differ by less differ only beyond nine digits."""
_NEAR_ZERO = 1e-12
"""Absolute tolerance, for example for sums that cancel out."""
_EXACT_INTEGERS = 2**53
"""Integers below this are exact as floats."""


def with_merged_floats(*results: Sequence[Row]) -> list[list[Row]] | None:
    """Return results in which floats that differ only beyond nine digits are one number.

    Returns:
        The results, or None if no float is near another number.
    """
    numbers = _compared_numbers(results)
    merged: dict[float, float] = {}
    # Neighbours are enough: a chain of near numbers takes the value of its first one.
    for before, value in itertools.pairwise(numbers):
        near = max(FLOAT_DIGITS * max(abs(before), abs(value)), _NEAR_ZERO)
        if value - before <= near and (isinstance(before, float) or isinstance(value, float)):
            merged[value] = merged.get(before, before)
    if not merged:
        return None
    return [_with_merged(rows, merged) for rows in results]


def _with_merged(rows: Iterable[Row], merged: Mapping[float, float]) -> list[Row]:
    """Return rows in which near numbers are the first one of their chain."""
    replaced: list[Row] = []
    for row in rows:
        replaced.append(tuple(_merged(value, merged) for value in row))
    return replaced


def _compared_numbers(results: Iterable[Sequence[Row]]) -> list[float]:
    """Return the different numbers of all results that merging looks at, in rising order."""
    numbers: set[float] = set()
    for row in itertools.chain.from_iterable(results):
        for value in row:
            if isinstance(value, int | float) and _is_compared(value):
                numbers.add(value)
    return sorted(numbers)


def _merged(value: Any, merged: Mapping[float, float]) -> Any:
    return merged.get(value, value) if isinstance(value, int | float) else value


def _is_compared(value: float) -> bool:
    return abs(value) < _EXACT_INTEGERS if isinstance(value, int) else math.isfinite(value)


class _Undecided(Exception):
    pass


class _Search:
    """Colour refinement over rows and columns, with a search where colours leave a choice.

    Two columns get one colour if they hold the same values in rows of the same colours. A matched
    column splits the rows' colours by its values. Both sides share one numbering, so that colours
    can
    be compared.
    """

    def __init__(self, gold: Sequence[Row], pred: Sequence[Row], timeout_s: float) -> None:
        self.sides = (list(zip(*gold, strict=True)), list(zip(*pred, strict=True)))
        self.rows = (gold, pred)
        self.deadline = time.monotonic() + timeout_s

    def decide(self) -> bool | None:
        """Return the verdict, or None if the time ran out."""
        # A row's values in any order: the columns of the two sides are not matched yet.
        start = _colours(list(map(_bag, self.rows[0])), list(map(_bag, self.rows[1])))
        if start is None:
            return False
        width = len(self.sides[0])
        try:
            return self._match(start, (list(range(width)), list(range(width))))
        except _Undecided:
            return None

    def _match(
        self, rows: tuple[list[int], list[int]], open_columns: tuple[list[int], list[int]]
    ) -> bool:
        if time.monotonic() > self.deadline:
            raise _Undecided
        while open_columns[0]:
            groups = self._groups(rows, open_columns)
            if groups is None:
                return False
            # Equal columns can be matched in any way without a loss, so only groups with
            # differences ever need a search.
            settled = list(filter(self._alike, groups))
            if not settled:
                smallest = min(groups, key=lambda group: len(group[0]))
                return self._branch(rows, open_columns, smallest)
            for group in settled:
                for left, right in zip(*group, strict=True):
                    split = self._split(rows, left, right)
                    if split is None:
                        return False
                    rows = split
            open_columns = _without(open_columns, settled)
        return True

    def _branch(
        self,
        rows: tuple[list[int], list[int]],
        open_columns: tuple[list[int], list[int]],
        group: tuple[list[int], list[int]],
    ) -> bool:
        left = group[0][0]
        tried: set[Hashable] = set()
        for right in group[1]:
            values = self.sides[1][right]
            if values in tried:
                continue
            tried.add(values)
            split = self._split(rows, left, right)
            if split is None:
                continue
            others = _without(open_columns, [([left], [right])])
            if self._match(split, others):
                return True
        return False

    def _groups(
        self, rows: tuple[list[int], list[int]], open_columns: tuple[list[int], list[int]]
    ) -> list[tuple[list[int], list[int]]] | None:
        """Return both sides' columns by colour, or None if the colour counts differ."""
        by_colour: dict[Hashable, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for side in (0, 1):
            for column in open_columns[side]:
                key = _bag(zip(rows[side], self.sides[side][column], strict=True))
                by_colour[key][side].append(column)
        groups = list(by_colour.values())
        for left, right in groups:
            if len(left) != len(right):
                return None
        return groups

    def _alike(self, group: tuple[list[int], list[int]]) -> bool:
        """Return whether all columns of the group are equal, so that any matching is valid."""
        for side in (0, 1):
            columns = self.sides[side]
            for column in group[side]:
                if columns[column] != columns[group[side][0]]:
                    return False
        return True

    def _split(
        self, rows: tuple[list[int], list[int]], left: int, right: int
    ) -> tuple[list[int], list[int]] | None:
        left_keys = list(zip(rows[0], self.sides[0][left], strict=True))
        right_keys = list(zip(rows[1], self.sides[1][right], strict=True))
        return _colours(left_keys, right_keys)


def _without(
    columns: tuple[list[int], list[int]], groups: Iterable[tuple[list[int], list[int]]]
) -> tuple[list[int], list[int]]:
    """Return both sides' columns except those of the groups."""
    left, right = list(columns[0]), list(columns[1])
    for group in groups:
        for column in group[0]:
            left.remove(column)
        for column in group[1]:
            right.remove(column)
    return left, right


def _bag(values: Any) -> Hashable:
    return frozenset(Counter(values).items())


def _colours(
    left_keys: Sequence[Hashable], right_keys: Sequence[Hashable]
) -> tuple[list[int], list[int]] | None:
    """Number both sides' keys jointly. Return None if the two multisets of keys differ."""
    numbers: dict[Hashable, int] = {}
    left = [numbers.setdefault(key, len(numbers)) for key in left_keys]
    right = [numbers.setdefault(key, len(numbers)) for key in right_keys]
    return (left, right) if Counter(left) == Counter(right) else None
