"""Calls of a dialogue as one row: which, and of which tokens."""

from __future__ import annotations

import pytest

from harness.records import Transition
from harness.testing.calls import transition
from harness_verl.rows import DialogueRow, rows_of


def call(index: int, prompt: list[int], reply: list[int], role: str = "ask") -> Transition:
    return transition(
        role,
        index,
        prompt_ids=tuple(prompt),
        response_ids=tuple(reply),
        logprobs=tuple(-token / 10 for token in reply),
        prompt_tokens=len(prompt),
        response_tokens=len(reply),
    )


def of(rows: list[DialogueRow]) -> list[list[int]]:
    return [row.calls for row in rows]


FIRST, SECOND, THIRD = (
    call(0, [1, 2], [3, 4]),
    call(1, [1, 2, 3, 4, 5, 6], [7]),
    call(2, [1, 2, 3, 4, 5, 6, 7, 8], [9, 10]),
)


def test_three_calls_of_a_dialogue_are_one_row() -> None:
    (row,) = rows_of([FIRST, SECOND, THIRD], merge=True)
    assert row.prompt_ids == [1, 2]
    assert row.response_ids == [3, 4, 5, 6, 7, 8, 9, 10]
    assert row.response_mask == [1, 1, 0, 0, 1, 0, 1, 1]
    assert row.logprobs == [-0.3, -0.4, 0, 0, -0.7, 0, -0.9, -1.0]
    assert (row.calls, row.sizes, row.again) == ([0, 1, 2], [2, 3, 3], False)
    assert row.saved == 4 + 7 == (4 + 7 + 10) - len(row)


def test_a_row_a_call_where_told_so() -> None:
    rows = rows_of([FIRST, SECOND, THIRD], merge=False)
    assert of(rows) == [[0], [1], [2]] and not any(row.again or row.saved for row in rows)
    assert [row.response_mask for row in rows] == [[1, 1], [1], [1, 1]]


@pytest.mark.parametrize(
    "prompt",
    [[1, 2, 3, 5, 5, 6], [1, 9, 3, 4, 5, 6], [1, 2, 3], [1, 2], [2, 3, 4, 5]],
    ids=[
        "another reply",
        "another prompt",
        "the reply cut short",
        "the same prompt",
        "the beginning lost",
    ],
)
def test_a_prompt_that_differs_in_a_token_begins_a_row(prompt: list[int]) -> None:
    first, second = rows_of([FIRST, call(1, prompt, [7])], merge=True)
    assert (first.calls, first.again, first.saved) == ([0], False, 0)
    assert (second.calls, second.again, second.saved) == ([1], True, 0)
    assert (second.prompt_ids, second.response_ids, second.response_mask) == (prompt, [7], [1])


def test_roles_that_take_turns_have_a_row_each() -> None:
    calls = [
        FIRST,
        call(1, [1, 2], [3, 4], "check"),
        call(2, [1, 2, 3, 4, 5], [6]),
        call(3, [1, 2, 3, 4], [8], "check"),
    ]
    rows = rows_of(calls, merge=True)
    assert [(row.role, row.calls, row.again) for row in rows] == [
        ("ask", [0, 2], False),
        ("check", [1, 3], False),
    ]
    assert rows[1].response_mask == [1, 1, 1]  # nothing came between
    assert of(rows_of([FIRST, call(1, [1, 2, 3, 4, 5], [6], "check")], merge=True)) == [[0], [1]]


def test_a_dialogue_that_parts_goes_on_once_and_a_summary_begins_anew() -> None:
    other = call(2, [1, 2, 3, 4, 5, 6], [8])  # of the same prompt as the second call
    last = call(3, [1, 2, 3, 4, 5, 6, 8, 9], [10])
    assert of(rows_of([FIRST, SECOND, other, last], merge=True)) == [[0, 1], [2, 3]]
    cut = call(2, [1, 2, 7, 8], [9])  # the first reply left out
    assert of(rows_of([FIRST, SECOND, cut], merge=True)) == [[0, 1], [2]]


def test_a_row_is_as_long_as_its_last_call() -> None:
    """So that limits of one call are limits of a row."""
    for calls in ([FIRST], [FIRST, SECOND], [FIRST, SECOND, THIRD]):
        (row,) = rows_of(calls, merge=True)
        assert len(row) == len(calls[-1].prompt_ids or ()) + len(calls[-1].response_ids or ())


def test_a_reply_that_is_not_trained_is_part_of_what_came_between() -> None:
    (row,) = rows_of([FIRST, THIRD], merge=True)
    assert row.response_mask == [1, 1, 0, 0, 0, 0, 1, 1] and row.response_ids == [
        3,
        4,
        5,
        6,
        7,
        8,
        9,
        10,
    ]
