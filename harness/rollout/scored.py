"""The result of a rollout for a trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.contracts.programs import Turn
from harness.records import Attempt, Transition


@dataclass(frozen=True, slots=True)
class Scored:
    """The result of one rollout, as the trainer receives it.

    Attributes:
        reward: The verdict; None if unscored.
        reason: Explanation of the verdict, or why there is none.
        used: The reward that training uses; None leaves the rollout out of its group.
        calls: The calls to train, with the engine's own token ids; in validation the policy's last
            call.
        kinds: Role and position of each of `calls`.
        values: Rewards of calls of trained roles by kind, including calls that are too long to
            train.
        turns: Number of calls of roles that do not only check.
        elapsed_s: Duration of the attempt in seconds.
        agrees: Of each of `calls`, whether it fits the attempt's answer: it wrote or approved that
            answer, or rejected one that is known to be worse. All do in a program without drafts.
    """

    reward: float | None
    reason: str
    used: float | None
    calls: tuple[Transition, ...]
    kinds: tuple[str, ...]
    values: Mapping[str, float]
    turns: int
    elapsed_s: float
    agrees: tuple[bool, ...] = ()


def agreeing(
    calls: Sequence[Transition],
    attempt: Attempt,
    turns: Sequence[Turn],
    worth: Mapping[str, float | None],
) -> tuple[bool, ...]:
    """Return `Scored.agrees` of some calls of an attempt.

    Args:
        turns: The program's turns of every call of the attempt; none without drafts.
        worth: Known values by answer, the attempt's own included.
    """
    if not turns:
        return (True,) * len(calls)
    turn_of = {}
    for call, turn in zip(attempt.transitions, turns, strict=True):
        turn_of[call.index] = turn
    final = worth.get(attempt.answer or "")
    agrees = []
    for call in calls:
        turn = turn_of[call.index]
        fits = turn.answer == attempt.answer
        if turn.approved is False:
            # A check that rejects everything also rejects right answers, so another text alone does
            # not make it right.
            rejected = worth.get(turn.answer or "")
            fits = rejected is not None and final is not None and rejected < final
        agrees.append(fits)
    return tuple(agrees)
