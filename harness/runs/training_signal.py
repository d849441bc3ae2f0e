"""Training signal: which groups (rollouts of one task) give a gradient."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from harness.util.formatting import most_often


def least_to_train(train: Mapping[str, Any]) -> float | None:
    """Return the lowest reward to train on, or None if section `train` does not select the best."""
    if train.get("algorithm") != "rejection":
        return None
    return float(train.get("rejection_threshold", 0))


def teaches(rewards: Collection[float], least: float | None = None) -> bool:
    """Return whether a group gives a gradient: rewards differ, or the best one is good enough."""
    return len(set(rewards)) > 1 if least is None else max(rewards) >= least


def mixed_tasks(rewards: Iterable[tuple[str, float | None]]) -> list[str]:
    """Return the tasks with different rewards among their scored rollouts, sorted.

    GRPO learns from these tasks only.

    Args:
        rewards: Task and reward of every rollout; None if unscored.
    """
    by_task: dict[str, set[float]] = defaultdict(set)
    for task, reward in rewards:
        if reward is not None:
            by_task[task].add(reward)
    return sorted(task for task, different in by_task.items() if teaches(different))


def mixed_groups(
    rewards: Iterable[tuple[int, str, float | None]], least: float | None = None
) -> dict[int, tuple[int, int]]:
    """Count, for each step, the groups of two or more scored rollouts, and those with a gradient.

    Args:
        rewards: Step, task and reward of every training rollout; None outside of any group.
        least: As in `least_to_train`.
    """
    groups: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for step, task, reward in rewards:
        if reward is not None:
            groups[step][task].append(reward)
    counted = {}
    for step, by_task in sorted(groups.items()):
        whole = mixed = 0
        for group in by_task.values():
            # A single scored rollout has no other to be compared with.
            if len(group) > 1:
                whole += 1
                mixed += teaches(group, least)
        counted[step] = whole, mixed
    return counted


def share_mixed(counted: Collection[tuple[int, int]]) -> float | None:
    """Return the share of groups with a gradient, or None without groups."""
    groups = mixed = 0
    for groups_of_step, mixed_of_step in counted:
        groups += groups_of_step
        mixed += mixed_of_step
    return mixed / groups if groups else None


def why_flat(
    paid: Iterable[tuple[float | None, str]], span: tuple[float, float], least: float | None = None
) -> str:
    """Explain in sentences why no group of a training gives a gradient.

    Args:
        paid: Reward of every training rollout, None outside of any group, and the reason for it.
        span: Lowest and highest possible reward.
        least: As in `least_to_train`.
    """
    rewards: set[float] = set()
    reasons: Counter[str] = Counter()
    for reward, reason in paid:
        if reward is not None:
            rewards.add(reward)
            reasons[reason] += 1
    if len(rewards) > 1 and least is not None:
        return f"No training rollout has a reward of {least:g} or more (train.rejection_threshold)."
    if len(rewards) > 1:
        return "All rollouts of each task have the same reward."
    only = rewards.pop()
    low, high = span
    which = ", the highest" if only >= high else ", the lowest" if only <= low else ""
    sentence = f"All {reasons.total():,} training rollouts have reward {only:g}{which}."
    # If every rollout has the highest reward, there is no fault to name.
    return sentence if only >= high else f"{sentence} {most_often(reasons)}"


OMITTED = (
    "they have no gold answer as text, or their prompt or answer is longer than "
    "sampling.max_prompt_tokens or max_response_tokens"
)
"""Why a training with gold answers leaves tasks out."""


def why_untaught(steps: Iterable[Mapping[str, Any]]) -> str:
    """Explain in a sentence why a training with gold answers trained none; empty if it did.

    Args:
        steps: Rows of `steps.parquet`. Those without `taught_calls` trained on rollouts, or not
            at all.
    """
    taught = [row["taught_calls"] for row in steps if row.get("taught_calls") is not None]
    if not taught or sum(taught) > 0:
        return ""
    return f"All tasks of the {len(taught)} steps were left out: {OMITTED}."
