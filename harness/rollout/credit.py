"""Assign the reward of each call: that of the rollout, of the call's own turn, or of its role."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from harness.contracts.programs import Turn
from harness.records import Attempt, Transition, Verdict


def kinds(calls: Iterable[Transition], turns: Sequence[Turn]) -> list[str]:
    """Return the kind of each call, `ROLE/NUMBER`: role and position among the role's calls.

    Without drafts all calls are of one turn, those of one role of one kind. Calls of one kind are
    paid alike.
    """
    seen: Counter[str] = Counter()
    names = []
    for call in calls:
        names.append(f"{call.role}/{seen[call.role]}")
        seen[call.role] += bool(turns)
    return names


def payments(
    credit: Literal["turn", "role"],
    attempt: Attempt,
    verdict: Verdict,
    turns: Sequence[Turn],
    worth: Mapping[str, float | None],
    of_a_check: Callable[[float, bool], float],
) -> list[float | None]:
    """Return the rewards of a scored attempt's calls, in order; None for an unknown reward.

    If the agent ended the attempt, all calls get the same reward. So do the calls of a program
    without drafts, except for roles that the reward scores.

    Args:
        turns: The program's turns of every call.
        worth: Values by answer.
        of_a_check: From the value of an answer, and whether a checker approved it.
    """
    if attempt.outcome != "ok":
        return [verdict.value] * len(attempt.transitions)

    def paid(call: Transition, turn: Turn) -> float | None:
        if credit == "role" and call.role in verdict.by_role:
            return verdict.by_role[call.role]
        value = worth.get(turn.answer) if turn.answer is not None else None
        if value is None or turn.approved is None or credit == "turn":
            return value
        return of_a_check(value, turn.approved)

    # A program without drafts: each of its calls led to the answer.
    every = turns or [Turn(attempt.answer)] * len(attempt.transitions)
    return [paid(call, turn) for call, turn in zip(attempt.transitions, every, strict=True)]
