"""Compare an agent's recordings with the reference's: differences or the deviation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.gateway.canonical import canonical_parameters
from harness.parity.recorder import RecordedCall, Recording
from harness.util.formatting import shortened

ACCEPTED = {
    "max_completion_tokens": "sent for `max_tokens`, with the same value",
    "stream_false": "`stream: false`, which is what leaving it out means",
}
"""Wire differences without effect on the model. Any other difference is a mismatch."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One difference from the reference, with its place."""

    scenario: str
    place: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.scenario}: {self.place}: expected {self.expected}, got {self.got}"


@dataclass(frozen=True, slots=True)
class Similarity:
    """The result of a comparison.

    Attributes:
        failed: Labels of the recordings with a mismatch, in order: scenarios, some of them
            `(together)`.
        accepted: Names of the accepted wire differences that occurred.
        calls_compared: Calls that were compared with the reference's, in scenarios played alone.
    """

    agent: str
    mismatches: tuple[Mismatch, ...]
    failed: tuple[str, ...]
    accepted: tuple[str, ...]
    calls_compared: int

    @property
    def passed(self) -> bool:
        """Return whether the agent has only accepted differences from its reference."""
        return not self.mismatches


@dataclass(frozen=True, slots=True)
class Deviation:
    """Differences of an idiomatic agent from the reference, summed over scenarios played alone.

    Attributes:
        calls: Calls made, and the reference's.
        prompt_chars: Characters of all messages sent, and the reference's.
        injected: Request parameters that the reference does not send.
        same_answer: Scenarios with the reference's outcome and answer, of all.
        same_tool_calls: Scenarios with the reference's tool calls, of all.
        changed_together: Scenarios that differed when all were played concurrently, because
            rollouts mix.
    """

    agent: str
    calls: tuple[int, int]
    prompt_chars: tuple[int, int]
    roles: tuple[str, ...]
    injected: tuple[str, ...]
    same_answer: tuple[int, int]
    same_tool_calls: tuple[int, int]
    other_outcomes: tuple[str, ...]
    changed_together: tuple[str, ...]


def compare(
    agent: str, recordings: Sequence[Recording], reference: Sequence[Recording]
) -> Similarity:
    """Compare a strict agent's recordings with the reference's, scenario by scenario.

    Other rollouts must have no effect, so every recording is compared with the reference played
    alone. A scenario that differs alone is not reported again for the concurrent play.
    """
    accepted: set[str] = set()
    mismatches: list[Mismatch] = []
    expected = _alone(reference)
    reported: set[str] = set()
    for recording in sorted(recordings, key=lambda recording: recording.play != "alone"):
        differences = _differences(recording, expected[recording.scenario], accepted)
        if differences and recording.scenario not in reported:
            reported.add(recording.scenario)
            mismatches += differences
    failed = tuple(dict.fromkeys(mismatch.scenario for mismatch in mismatches))
    compared = 0
    for name, recording in _alone(recordings).items():
        # A call that only one of them made has no counterpart.
        compared += min(len(recording.calls), len(expected[name].calls))
    return Similarity(agent, tuple(mismatches), failed, tuple(sorted(accepted)), compared)


def changed_together(recordings: Sequence[Recording]) -> list[Mismatch]:
    """Return the differences of an agent from itself when it plays all scenarios concurrently."""
    expected = _alone(recordings)
    differences: list[Mismatch] = []
    for recording in recordings:
        if recording.play == "together":
            differences += _differences(recording, expected[recording.scenario], set())
    return differences


def measure(
    agent: str, recordings: Sequence[Recording], reference: Sequence[Recording]
) -> Deviation:
    """Measure an idiomatic agent against the reference."""
    bases = _alone(reference)
    own, expected = [], []
    for name, recording in _alone(recordings).items():
        own.append(recording)
        expected.append(bases[name])
    own_calls, expected_calls = _calls(own), _calls(expected)
    known_params: set[str] = set()
    for call in expected_calls:
        known_params |= call.params.keys()
    sent_params: set[str] = set()
    for call in own_calls:
        # In canonical form: an accepted other name of a parameter is not injected.
        sent_params |= _canonical(call, set())[1].keys()
    same_answers = same_tool_calls = own_chars = expected_chars = 0
    other_outcomes = []
    for mine, base in zip(own, expected, strict=True):
        own_chars += mine.prompt_chars
        expected_chars += base.prompt_chars
        same_answers += (mine.answer, mine.outcome) == (base.answer, base.outcome)
        same_tool_calls += mine.executed == base.executed
        if mine.outcome != base.outcome:
            other_outcomes.append(f"{mine.scenario}: {mine.outcome} for {base.outcome}")
    changed = dict.fromkeys(mismatch.scenario for mismatch in changed_together(recordings))
    return Deviation(
        agent=agent,
        calls=(len(own_calls), len(expected_calls)),
        prompt_chars=(own_chars, expected_chars),
        roles=tuple(sorted({call.role for call in own_calls})),
        injected=tuple(sorted(sent_params - known_params)),
        same_answer=(same_answers, len(own)),
        same_tool_calls=(same_tool_calls, len(own)),
        other_outcomes=tuple(other_outcomes),
        changed_together=tuple(changed),
    )


def _calls(recordings: Sequence[Recording]) -> list[RecordedCall]:
    calls: list[RecordedCall] = []
    for recording in recordings:
        calls += recording.calls
    return calls


def _alone(recordings: Sequence[Recording]) -> dict[str, Recording]:
    return {recording.scenario: recording for recording in recordings if recording.play == "alone"}


def _differences(mine: Recording, base: Recording, accepted: set[str]) -> list[Mismatch]:
    differences: list[Mismatch] = []

    def differ(place: str, expected: object, got: object) -> None:
        differences.append(Mismatch(mine.label, place, value_text(expected), value_text(got)))

    if mine.leaks:
        differ("gold", "in no request", ", ".join(mine.leaks))
    if mine.swallowed and not base.swallowed:
        # All that differs after the error follows from it.
        differences.append(
            Mismatch(mine.label, "error of a call", "the error ends the rollout", mine.swallowed)
        )
        return differences
    roles, base_roles = [call.role for call in mine.calls], [call.role for call in base.calls]
    if roles != base_roles:
        differ("sequence of roles", " > ".join(base_roles), " > ".join(roles) or "no calls")
    for index, (call, other) in enumerate(zip(mine.calls, base.calls, strict=False)):
        where = f"call {index} ({other.role})"
        for place, expected, got in _otherwise(call, other, accepted):
            differ(f"{where} {place}", expected, got)
    if mine.executed != base.executed:
        first = _first_unequal(mine.executed, base.executed)
        # A slice, not an index: one of them may have no such call.
        expected_call = base.executed[first : first + 1] or "no call"
        differ(f"tool call {first}", expected_call, mine.executed[first : first + 1] or "no call")
    # An answer without the expected outcome is no further difference.
    if mine.outcome != base.outcome:
        differ("outcome", base.outcome, f"{mine.outcome} ({mine.detail})")
    elif mine.answer != base.answer:
        differ("answer", base.answer, mine.answer)
    return differences


def _first_unequal(first: Sequence[object], second: Sequence[object]) -> int:
    """Return the first position at which two sequences differ; the shorter one's length if none."""
    for position, (left, right) in enumerate(zip(first, second, strict=False)):
        if left != right:
            return position
    return min(len(first), len(second))


def first_difference(call: RecordedCall, base: RecordedCall) -> tuple[str, object, object] | None:
    """Return the first difference of a request from the reference's: place, expected, got.

    Or None.
    """
    return next(_otherwise(call, base, set()), None)


def _otherwise(
    call: RecordedCall, base: RecordedCall, accepted: set[str]
) -> Iterator[tuple[str, object, object]]:
    """Yield differences between two calls' requests: the place, the expected and the sent value."""
    messages, params = _canonical(call, accepted)
    base_messages, base_params = _canonical(base, set())
    if len(messages) != len(base_messages):
        yield "messages", f"{len(base_messages)} messages", f"{len(messages)} messages"
    for number, (message, base_message) in enumerate(zip(messages, base_messages, strict=False)):
        # Texts are long, so the difference is narrowed down; parameters are short.
        for name in sorted(message.keys() | base_message.keys()):
            if message.get(name) != base_message.get(name):
                yield _zoom(f"messages[{number}].{name}", base_message.get(name), message.get(name))
    for name in sorted(params.keys() | base_params.keys()):
        # `null` is not the same as a parameter that is not sent.
        if name not in params or name not in base_params or params[name] != base_params[name]:
            yield name, base_params.get(name, "not sent"), params.get(name, "not sent")


def _canonical(
    call: RecordedCall, accepted: set[str]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return messages and parameters with accepted differences undone.

    Add their names to `accepted`.
    """
    params, names = canonical_parameters(call.params)
    accepted.update(names)
    return call.messages, params


def _zoom(place: str, expected: object, got: object) -> tuple[str, object, object]:
    """Narrow two texts to their first difference."""
    if not isinstance(expected, str) or not isinstance(got, str):
        return place, expected, got
    position = _first_unequal(expected, got)
    shown = slice(max(0, position - 12), position + 24)
    return f"{place} at character {position}", expected[shown], got[shown]


def value_text(value: object) -> str:
    """Return a value as text of at most 160 characters."""
    text = value if isinstance(value, str) and " > " in value else repr(value)
    return shortened(text, 160, "…")
