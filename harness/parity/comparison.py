"""Compare an agent's recordings with the reference's: differences or the deviation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.gateway.canonical import canonical_parameters
from harness.parity.recorder import RecordedCall, Recording

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
    told: set[str] = set()
    for recording in sorted(recordings, key=lambda recording: recording.play != "alone"):
        found = _differences(recording, expected[recording.scenario], accepted)
        if found and recording.scenario not in told:
            told.add(recording.scenario)
            mismatches += found
    failed = tuple(dict.fromkeys(mismatch.scenario for mismatch in mismatches))
    compared = sum(
        min(len(one.calls), len(expected[name].calls)) for name, one in _alone(recordings).items()
    )
    return Similarity(agent, tuple(mismatches), failed, tuple(sorted(accepted)), compared)


def changed_together(recordings: Sequence[Recording]) -> list[Mismatch]:
    """Return the differences of an agent from itself when it plays all scenarios concurrently."""
    expected = _alone(recordings)
    together = [recording for recording in recordings if recording.play == "together"]
    return [
        found for mine in together for found in _differences(mine, expected[mine.scenario], set())
    ]


def measure(
    agent: str, recordings: Sequence[Recording], reference: Sequence[Recording]
) -> Deviation:
    """Measure an idiomatic agent against the reference."""
    expected = _alone(reference)
    pairs = [(recording, expected[name]) for name, recording in _alone(recordings).items()]
    known = {name for _, base in pairs for call in base.calls for name in call.params}
    injected = {
        name
        for mine, _ in pairs
        for call in mine.calls
        for name in _canonical(call, set())[1]
        if name not in known
    }
    return Deviation(
        agent=agent,
        calls=(
            sum(len(mine.calls) for mine, _ in pairs),
            sum(len(base.calls) for _, base in pairs),
        ),
        prompt_chars=(
            sum(mine.prompt_chars for mine, _ in pairs),
            sum(base.prompt_chars for _, base in pairs),
        ),
        roles=tuple(sorted({call.role for mine, _ in pairs for call in mine.calls})),
        injected=tuple(sorted(injected)),
        same_answer=(
            sum((mine.answer, mine.outcome) == (base.answer, base.outcome) for mine, base in pairs),
            len(pairs),
        ),
        same_tool_calls=(sum(mine.executed == base.executed for mine, base in pairs), len(pairs)),
        other_outcomes=tuple(
            f"{mine.scenario}: {mine.outcome} for {base.outcome}"
            for mine, base in pairs
            if mine.outcome != base.outcome
        ),
        changed_together=tuple(
            dict.fromkeys(found.scenario for found in changed_together(recordings))
        ),
    )


def _alone(recordings: Sequence[Recording]) -> dict[str, Recording]:
    return {recording.scenario: recording for recording in recordings if recording.play == "alone"}


def _differences(mine: Recording, base: Recording, accepted: set[str]) -> list[Mismatch]:
    found: list[Mismatch] = []

    def differ(place: str, expected: object, got: object) -> None:
        found.append(Mismatch(mine.label, place, shortened(expected), shortened(got)))

    if mine.leaks:
        differ("gold", "in no request", ", ".join(mine.leaks))
    if mine.swallowed and not base.swallowed:
        # All that differs after the error follows from it.
        found.append(
            Mismatch(mine.label, "error of a call", "the error ends the rollout", mine.swallowed)
        )
        return found
    roles, base_roles = [call.role for call in mine.calls], [call.role for call in base.calls]
    if roles != base_roles:
        differ("sequence of roles", " > ".join(base_roles), " > ".join(roles) or "no calls")
    for index, (call, other) in enumerate(zip(mine.calls, base.calls, strict=False)):
        where = f"call {index} ({other.role})"
        for place, expected, got in _otherwise(call, other, accepted):
            differ(f"{where} {place}", expected, got)
    if mine.executed != base.executed:
        pairs = zip(mine.executed, base.executed, strict=False)
        first = next(
            (n for n, (a, b) in enumerate(pairs) if a != b),
            min(len(mine.executed), len(base.executed)),
        )
        at = slice(first, first + 1)
        differ(
            f"tool call {first}",
            *(rows[at] or "no call" for rows in (base.executed, mine.executed)),
        )
    if mine.outcome != base.outcome:
        differ("outcome", base.outcome, f"{mine.outcome} ({mine.detail})")
    elif mine.answer != base.answer:
        differ("answer", base.answer, mine.answer)
    return found


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
        for name in sorted(message.keys() | base_message.keys()):
            if message.get(name) != base_message.get(name):
                yield _zoom(f"messages[{number}].{name}", base_message.get(name), message.get(name))
    for name in sorted(params.keys() | base_params.keys()):
        if name not in params or name not in base_params or params[name] != base_params[name]:
            yield name, base_params.get(name, "not sent"), params.get(name, "not sent")


def _canonical(
    call: RecordedCall, accepted: set[str]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return messages and parameters with accepted differences undone.

    Add their names to `accepted`.
    """
    params, met = canonical_parameters(call.params)
    accepted.update(met)
    return call.messages, params


def _zoom(place: str, expected: object, got: object) -> tuple[str, object, object]:
    """Narrow two texts to their first difference."""
    if not isinstance(expected, str) or not isinstance(got, str):
        return place, expected, got
    pairs = zip(expected, got, strict=False)
    at = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(got)))
    start = max(0, at - 12)
    return f"{place} at character {at}", expected[start : at + 24], got[start : at + 24]


def shortened(value: object) -> str:
    """Return a value as text of at most 160 characters."""
    text = value if isinstance(value, str) and " > " in value else repr(value)
    return text if len(text) <= 160 else text[:159] + "…"
