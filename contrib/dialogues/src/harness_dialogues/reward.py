"""The reward `end_state`."""

from __future__ import annotations

import json

from harness import Attempt, Task, Verdict
from harness_dialogues.roles import USER

NOT_ENDED = "not_ended_by_user"
"""Flag of a dialogue that ended by a bound or by an empty message of the agent."""


class EndState:
    """1 if the session's final state equals the gold, a JSON object, else 0.

    Messages do not count. An attempt without a final state has no verdict.
    """

    version = "end_state/1"

    async def score(self, task: Task, attempt: Attempt) -> Verdict:
        if attempt.state is None:
            return Verdict(None, "the environment left no state behind")
        calls = attempt.transitions
        bound = any(call.role == USER for call in calls) and calls[-1].role != USER
        flags = (NOT_ENDED,) if bound else ()
        wrong = _different(json.loads(task.gold), attempt.state)
        if wrong:
            return Verdict(0.0, f"{', '.join(wrong[:5])} not as it should be", flags=flags)
        return Verdict(1.0, "all is as it should be", flags=flags)

    def refuses(self, task: Task) -> str:
        """Refuse gold that is no state."""
        try:
            state = json.loads(task.gold)
        except ValueError:
            state = None
        return (
            ""
            if isinstance(state, dict)
            else f"the gold of {task.id} is no JSON object; use another reward"
        )


def _different(gold: dict[str, object], state: object) -> list[str]:
    """Return the keys with values other than the gold's.

    JSON's numbers are equal by value, true is not 1.
    """
    left = state if isinstance(state, dict) else {}
    differing = []
    for name in {*gold, *left}:
        expected = json.dumps(gold.get(name), sort_keys=True)
        actual = json.dumps(left.get(name), sort_keys=True)
        # A missing key and null look alike in `get`, but are different states.
        if expected != actual or (name in gold) != (name in left):
            differing.append(name)
    return sorted(differing)
