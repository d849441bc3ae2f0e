from __future__ import annotations

import itertools
import random
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_sql.sqlite.matching import Row, same_result


def by_permutation(gold: list[Row], pred: list[Row], ordered: bool) -> bool:
    """The definition, spelled out."""
    if len(gold) != len(pred) or (gold and len(gold[0]) != len(pred[0])):
        return False
    for order in itertools.permutations(range(len(gold[0]) if gold else 0)):
        moved = [tuple(row[column] for column in order) for row in pred]
        if moved == gold if ordered else Counter(moved) == Counter(gold):
            return True
    return not gold


cells = st.sampled_from([0, 1, 1.0, "1", "a", None, b"a", 2**60, float(2**60)])


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Row], list[Row], bool]:
    width, height = draw(st.integers(1, 4)), draw(st.integers(0, 5))
    rows = st.lists(st.tuples(*[cells] * width), min_size=height, max_size=height)
    gold: list[Row] = draw(rows)
    pred: list[Row] = draw(rows)
    if draw(st.booleans()):  # most random pairs differ: also take real permutations
        order = draw(st.permutations(range(width)))
        pred = [tuple(row[column] for column in order) for row in draw(st.permutations(gold))]
    return gold, pred, draw(st.booleans())


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(tables())
def test_agrees_with_the_definition(case: tuple[list[Row], list[Row], bool]) -> None:
    gold, pred, ordered = case
    assert same_result(gold, pred, ordered=ordered) is by_permutation(gold, pred, ordered)


def test_wide_identical_columns_take_no_time() -> None:
    gold = [(1,) * 60, (2,) * 60]
    started = time.perf_counter()
    assert same_result(gold, gold[::-1], ordered=False) is True
    assert same_result(gold, gold[::-1], ordered=True) is False
    assert same_result(gold, [(1,) * 59 + (2,), (2,) * 59 + (1,)], ordered=False) is False
    assert time.perf_counter() - started < 1


def test_large_shuffled_result_is_matched() -> None:
    chance = random.Random(1)
    gold = [tuple(chance.randrange(3) for _ in range(12)) for _ in range(3000)]
    order = list(range(12))
    chance.shuffle(order)
    pred = [tuple(row[column] for column in order) for row in gold]
    chance.shuffle(pred)
    assert same_result(gold, pred, ordered=False) is True
    pred[0] = tuple(2 - value for value in pred[0])
    assert same_result(gold, pred, ordered=False) is False


def test_columns_that_colours_do_not_tell_apart_are_searched() -> None:
    # Cycles as incidence tables: one of six against two of three. All rows and columns look alike.
    def cycle(nodes: list[int]) -> list[tuple[int, int]]:
        return list(zip(nodes, nodes[1:] + nodes[:1], strict=True))

    def table(edges: list[tuple[int, int]]) -> list[Row]:
        return [tuple(int(node in edge) for node in range(6)) for edge in edges]

    one, two = table(cycle([0, 1, 2, 3, 4, 5])), table(cycle([0, 1, 2]) + cycle([3, 4, 5]))
    assert same_result(one, two, ordered=False) is False
    assert same_result(one, table(cycle([3, 0, 5, 2, 4, 1])), ordered=False) is True
