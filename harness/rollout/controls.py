"""Control experiments: rewards that are exchanged between rollouts, or inverted for a share of them.

A policy that improves under such rewards did not learn from them.
"""

from __future__ import annotations

import random
from collections import defaultdict


class RewardShuffle:
    """The control experiment: replace each verdict with that of some rollout of the previous step.

    This keeps the distribution of rewards but cuts their link to the behaviour. The choice follows
    from the seed and the rollout: two runs with equal behaviour have equal controls, in any order
    of their rollouts. Without a previous step, the verdict comes from the same step.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._known: dict[int, list[float]] = defaultdict(list)

    def note(self, step: int, reward: float) -> None:
        """Offer a verdict of a step to other rollouts."""
        self._known[step].append(reward)

    def draw(self, step: int, who: str, reward: float) -> float:
        """Return another rollout's verdict for `who`, and offer `reward` to others."""
        self.note(step, reward)
        # Of an earlier step, which is complete: verdicts of this one arrive in any order.
        earlier = max((noted for noted in self._known if noted < step), default=step)
        for noted in list(self._known):
            if noted < earlier:
                del self._known[noted]
        return random.Random(f"{self._seed}/{step}/{who}").choice(sorted(self._known[earlier]))


def inverts(seed: int, share: float, step: int, who: str) -> bool:
    """Return whether `who` is in the share of a step's rollouts that train with the opposite verdict."""
    return share > 0 and random.Random(f"{seed}/inverted/{step}/{who}").random() < share
