"""Advantages of the sessions of a group, from their scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import torch
from verl.trainer.ppo import core_algos


def grouped_advantages(
    scores: Mapping[tuple[str, str], float], *, by_std: bool
) -> dict[tuple[str, str], float]:
    """Return GRPO's advantage of every session, by (group, session); 0 for one alone in its group.

    A group is a task, or a task's calls of one kind. Source: verl's
    `compute_grpo_outcome_advantage` over the sessions of a group, in order of session.
    """
    names = sorted(scores)
    values = torch.tensor([[scores[name]] for name in names])
    groups = [group for group, _ in names]
    index = np.array(groups, dtype=object)
    advantages, _ = core_algos.compute_grpo_outcome_advantage(
        values, torch.ones_like(values), index, norm_adv_by_std_in_grpo=by_std
    )
    sizes = Counter(groups)
    by_session = {}
    for name, advantage in zip(names, advantages, strict=True):
        # verl gives a session that is alone in its group its whole score.
        by_session[name] = 0.0 if sizes[name[0]] == 1 else float(advantage[0])
    return by_session


def best_of_group(
    scores: Mapping[tuple[str, str], float], *, least: float
) -> dict[tuple[str, str], float]:
    """Return 1 for each session with the highest score of its group, 0 for all others.

    Scores below `least` also give 0. Sessions that share the highest score are all chosen. A
    session that is alone in its group is compared with `least` only.
    """
    # Compared in the precision of a batch, so that scores that are equal there are equal here.
    rounded = {name: np.float32(score) for name, score in scores.items()}
    best: dict[str, np.float32] = {}
    for (group, _), score in rounded.items():
        best[group] = max(score, best.get(group, np.float32(least)))
    chosen = {}
    for name, score in rounded.items():
        chosen[name] = float(score >= best[name[0]])
    return chosen
