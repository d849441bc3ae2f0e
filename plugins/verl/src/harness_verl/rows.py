"""Rows of one rollout: one row a call, or one for all calls of a dialogue.

A dialogue continues where a call's prompt begins with the prompt and the reply of an earlier call
of the same role, token for token as the engine reported them; nothing is tokenised here. Its calls
are one row: the first prompt, then the replies and, masked, the tokens between them. Each token of
a reply follows the same tokens as in a row of its own, so that its gradient is the same. Such a row
is as long as its last call, so it needs no more room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from harness.records import Transition


@dataclass(slots=True)
class DialogueRow:
    """One row with as many calls as it can hold.

    Attributes:
        again: Whether its role had a row already that this call does not continue.
        prompt_ids: Prompt of the first call.
        response_ids: Replies and the tokens between them.
        response_mask: 1 on replies, 0 between them.
        logprobs: As the engine reported them; 0 between replies.
        calls: Numbers of its calls among the calls given.
        ends: Where the reply of each call ends in `response_ids`.
        saved: Tokens that one row for each call would have had in addition.
    """

    role: str
    again: bool
    prompt_ids: list[int]
    response_ids: list[int] = field(default_factory=list)
    response_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    saved: int = 0

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)

    @property
    def sizes(self) -> list[int]:
        """Each call's number of tokens in `response_ids`: those before its reply, and the reply."""
        return [end - start for start, end in pairwise([0, *self.ends])]

    def goes_on(self, prompt: Sequence[int]) -> bool:
        """Return whether a prompt begins with all tokens of this row."""
        first = len(self.prompt_ids)
        return [*prompt[:first]] == self.prompt_ids and [
            *prompt[first : len(self)]
        ] == self.response_ids

    def add(self, number: int, between: Sequence[int], call: Transition) -> None:
        reply = call.response_ids or ()
        self.response_ids += [*between, *reply]
        self.response_mask += [0] * len(between) + [1] * len(reply)
        self.logprobs += [0.0] * len(between) + [*(call.logprobs or ())]
        self.calls.append(number)
        self.ends.append(len(self.response_ids))


def rows_of(calls: Sequence[Transition], *, merge: bool) -> list[DialogueRow]:
    """Return the rows of a rollout's trained calls, in order of their first calls.

    Args:
        merge: Put calls that continue one another into one row.
    """
    rows: list[DialogueRow] = []
    for number, call in enumerate(calls):
        prompt = call.prompt_ids or ()
        has_earlier = False
        continued = []
        for earlier in rows:
            if merge and earlier.role == call.role:
                has_earlier = True
                if earlier.goes_on(prompt):
                    continued.append(earlier)
        # The longest row that fits, as a shorter one is a beginning that several calls share.
        row = max(continued, key=len, default=None)
        if row is None:
            row = DialogueRow(call.role, has_earlier, [*prompt])
            rows.append(row)
        else:
            row.saved += len(row)
        row.add(number, prompt[len(row) :], call)
    return rows


UNTRAINED = DialogueRow("", False, [0], [0], [0], [0.0])
"""A row without trained tokens: one masked token, for the score in its group's baseline."""
