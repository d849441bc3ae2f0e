"""The reward `from_agent`: what the agent itself gave."""

from __future__ import annotations

from harness import Attempt, Task, Verdict


class FromAgent:
    """Use the reward that an agent returned or emitted. An answer without one is unscored."""

    version = "from_agent/1"

    async def score(self, task: Task, attempt: Attempt) -> Verdict:
        """Return the agent's own reward as the verdict, unscored if there is none."""
        if attempt.reported is None:
            return Verdict(None, "the agent returned no reward")
        return Verdict(attempt.reported, "the agent's own reward")
