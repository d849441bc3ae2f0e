"""Whether a training had anything to learn from: groups of rollouts of one task that teach."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from harness.wording import most_often


def least_to_train(train: Mapping[str, Any]) -> float | None:
    """From which reward on a rollout is trained, in runs whose section `train` chooses the best; None: all are."""
    return (
        float(train.get("rejection_threshold", 0))
        if train.get("algorithm") == "rejection"
        else None
    )


def teaches(rewards: Collection[float], least: float | None = None) -> bool:
    """Whether a group gives a gradient: GRPO's rewards differ, or the best is to be trained."""
    return len(set(rewards)) > 1 if least is None else max(rewards) >= least


def mixed_tasks(rewards: Iterable[tuple[str, float | None]]) -> list[str]:
    """Tasks whose scored rollouts differ in reward, sorted: those that GRPO has something to learn from.

    Args:
        rewards: Task and reward of every rollout; None where it is unscored.
    """
    found: dict[str, set[float]] = defaultdict(set)
    for task, reward in rewards:
        if reward is not None:
            found[task].add(reward)
    return sorted(task for task, of in found.items() if teaches(of))


def mixed_groups(
    rewards: Iterable[tuple[int, str, float | None]], least: float | None = None
) -> dict[int, tuple[int, int]]:
    """Of every step the groups of two or more scored rollouts, and how many of them teach.

    Args:
        rewards: Step, task and reward of every training rollout; None where it is in no group.
        least: As `least_to_train` says.
    """
    groups: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for step, task, reward in rewards:
        if reward is not None:
            groups[step][task].append(reward)
    counted = {}
    for step, of in sorted(groups.items()):
        whole = [group for group in of.values() if len(group) > 1]
        counted[step] = len(whole), sum(teaches(group, least) for group in whole)
    return counted


def share_mixed(counted: Collection[tuple[int, int]]) -> float | None:
    """The share of groups that teach; None where there is no group."""
    groups = sum(groups for groups, _ in counted)
    return sum(mixed for _, mixed in counted) / groups if groups else None


def why_flat(
    paid: Iterable[tuple[float | None, str]], span: tuple[float, float], least: float | None = None
) -> str:
    """Why no group of a training teaches, as sentences.

    Args:
        paid: Reward of every training rollout, None where it is in no group, and the reason for it.
        span: The lowest and the highest reward that there is.
        least: As `least_to_train` says.
    """
    scored = [(reward, reason) for reward, reason in paid if reward is not None]
    (low, high), found = span, {reward for reward, _ in scored}
    if len(found) > 1 and least is not None:
        return f"No training rollout has a reward of {least:g} or more (train.rejection_threshold)."
    if len(found) > 1:
        return "All rollouts of each task have the same reward."
    only = found.pop()
    which = ", the highest" if only >= high else ", the lowest" if only <= low else ""
    said = f"All {len(scored):,} training rollouts have reward {only:g}{which}."
    return said if only >= high else f"{said} {most_often(Counter(reason for _, reason in scored))}"
