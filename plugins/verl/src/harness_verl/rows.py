"""The rows of one rollout: one a call, or one for all calls of a dialogue.

A dialogue goes on where a call's prompt begins with the prompt and the reply of an earlier call of the same role, token
for token as the engine reported them; nothing is tokenised here. Its calls are one row: the first prompt, then the
replies and, masked, what came between them. Before each token of a reply stand the same tokens as in a row of its own,
so that its gradient is the same. Such a row is as long as its last call: whatever has room for that has room for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from harness.records import Transition


@dataclass(slots=True)
class DialogueRow:
    """One row, with as many calls as could be put into it.

    Attributes:
        again: Whether it is of a role that had a row already, which this call does not go on from.
        prompt_ids: Of the first call.
        response_ids: Replies and what came between them.
        response_mask: 1 on replies, 0 on what came between.
        logprobs: As the engine reported them; 0 on what came between.
        calls: Which of the calls given, by number.
        ends: Where the reply of each ends in `response_ids`.
        saved: Tokens that rows of a call each would have had besides.
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
        """Of each call the tokens of `response_ids` that came with it: what was before its reply, and the reply."""
        return [end - start for start, end in pairwise([0, *self.ends])]

    def goes_on(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt begins with all that is here."""
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
    """The rows of a rollout's trained calls, in order of their first calls.

    Args:
        merge: Put calls that go on from one another into one row.
    """
    rows: list[DialogueRow] = []
    for number, call in enumerate(calls):
        prompt = call.prompt_ids or ()
        earlier = [row for row in rows if merge and row.role == call.role]
        row = max((row for row in earlier if row.goes_on(prompt)), key=len, default=None)
        if row is None:
            row = DialogueRow(call.role, bool(earlier), [*prompt])
            rows.append(row)
        else:
            row.saved += len(row)
        row.add(number, prompt[len(row) :], call)
    return rows


UNTRAINED = DialogueRow("", False, [0], [0], [0], [0.0])
"""The row of a rollout that brought a score and nothing to train: one masked token, for its group's baseline."""
