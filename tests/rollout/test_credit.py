"""What each call of a rollout is paid, call by call."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.config import load_config
from harness.contracts.programs import Turn
from harness.plugins import program
from harness.records import Attempt, Verdict
from harness.rollout.credit import kinds, payments
from harness.rollout.scoring import Scorer
from harness.testing.calls import transition

SQL, TOOLS = program("self_correcting_sql"), program("tool_loop")
WORTH: dict[str, float | None] = {"A": 0.0, "B": 0.25, "C": 1.0}
APPROVED, REJECTED = "THE QUERY IS CORRECT.", "No.\nTHE QUERY IS INCORRECT."


def attempt(*calls: tuple[str, str], answer: str | None = "C") -> Attempt:
    """An attempt of calls by role and reply; a reply of no text calls a tool."""
    made = tuple(
        transition(
            role,
            index,
            response_text=text,
            finish_reason="stop" if text else "tool_calls",
            prompt_ids=(1,),
            response_ids=(2,),
            logprobs=(-0.1,),
            prompt_tokens=1,
            response_tokens=1,
        )
        for index, (role, text) in enumerate(calls)
    )
    return Attempt("r", "a", "ok", "", answer, made, (), (), 0.0, 0.0)


CORRECTED = attempt(
    ("write_query", "```sql\nA\n```"),
    ("check_query", REJECTED),
    ("rewrite_query", "```sql\nB\n```"),
    ("check_query", APPROVED),
    ("rewrite_query", "```sql\nC\n```"),
)


def paid(
    credit: str, of: Attempt, verdict: Verdict | None = None, **worth: float | None
) -> list[float | None]:
    scorer = Scorer(load_config("cpu"))
    known = {**WORTH, **worth}
    verdict = verdict or Verdict(1.0, "rows are equal")
    return payments(credit, of, verdict, SQL.turns(of), known, scorer.of_a_check)  # type: ignore[arg-type]


def test_the_program_says_which_answer_each_call_is_about() -> None:
    assert SQL.turns(CORRECTED) == (
        Turn("A"),
        Turn("A", False),
        Turn("B"),
        Turn("B", True),
        Turn("C"),
    )
    assert TOOLS.turns(CORRECTED) == SQL.turns(attempt()) == ()
    # A query that is tried with a tool goes with the answer after it, and the last answer is the attempt's own.
    tried = attempt(("write_query", ""), ("write_query", ""), ("write_query", "as text"))
    assert SQL.turns(tried) == (Turn("C"),) * 3
    # Cut off at its deadline: what it had written is known.
    assert SQL.turns(replace(CORRECTED, outcome="timeout", answer=None))[-1] == Turn("C")


def test_kinds_are_role_and_position() -> None:
    assert kinds(CORRECTED.transitions, SQL.turns(CORRECTED)) == [
        *("write_query/0", "check_query/0", "rewrite_query/0", "check_query/1", "rewrite_query/1")
    ]


def test_calls_are_paid_by_turn_or_role() -> None:
    assert paid("turn", CORRECTED) == [0.0, 0.0, 0.25, 0.25, 1.0]
    assert paid("role", CORRECTED) == [0.0, 1.0, 0.25, 0.25, 1.0]
    assert paid(
        "role", attempt(("write_query", "C"), ("check_query", REJECTED), ("rewrite_query", "A"))
    ) == [
        *(1.0, 0.0, 1.0)  # rejected a right answer; the rewrite is what the attempt answered
    ]


def test_the_word_of_the_reward_on_a_role_comes_first() -> None:
    verdict = Verdict(1.0, "graded", by_role={"check_query": 0.5})
    assert paid("role", CORRECTED, verdict) == [0.0, 0.5, 0.25, 0.5, 1.0]
    assert paid("turn", CORRECTED, verdict) == [0.0, 0.0, 0.25, 0.25, 1.0]


@pytest.mark.parametrize("credit", ["turn", "role"])
def test_what_nobody_can_judge_is_not_zero(credit: str) -> None:
    assert paid(credit, CORRECTED, B=None) == [
        0.0,
        0.0 if credit == "turn" else 1.0,
        None,
        None,
        1.0,
    ]


@pytest.mark.parametrize("credit", ["turn", "role"])
def test_all_calls_of_what_the_agent_ended_are_paid_alike(credit: str) -> None:
    ended = replace(CORRECTED, outcome="agent_error", answer=None)
    assert paid(credit, ended, Verdict(0.0, "agent_error: it raised")) == [0.0] * 5


def test_a_program_without_drafts_has_one_turn() -> None:
    assert kinds(CORRECTED.transitions, ()) == [
        *("write_query/0", "check_query/0", "rewrite_query/0", "check_query/0", "rewrite_query/0")
    ]
    of = attempt(("assistant", ""), ("assistant", "C"))
    found = payments(
        "turn",
        of,
        Verdict(0.75, "graded"),
        TOOLS.turns(of),
        {"C": 0.75},
        lambda worth, approved: 0.0,
    )
    assert found == [0.75, 0.75]
