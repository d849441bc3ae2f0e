"""Whether a training had anything to learn from: groups of rollouts of one task whose rewards differ."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable

from harness.wording import most_often


def mixed_groups(rewards: Iterable[tuple[int, str, float | None]]) -> dict[int, tuple[int, int]]:
    """Of every step the groups of two or more scored rollouts, and in how many of them rewards differ.

    A group whose rewards are all equal gives GRPO no gradient.

    Args:
        rewards: Step, task and reward of every training rollout; None where it is in no group.
    """
    groups: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for step, task, reward in rewards:
        if reward is not None:
            groups[step][task].append(reward)
    counted = {}
    for step, of in sorted(groups.items()):
        whole = [group for group in of.values() if len(group) > 1]
        counted[step] = len(whole), sum(len(set(group)) > 1 for group in whole)
    return counted


def share_mixed(counted: Collection[tuple[int, int]]) -> float | None:
    """The share of groups in which rewards differ; None where there is no group."""
    groups = sum(groups for groups, _ in counted)
    return sum(mixed for _, mixed in counted) / groups if groups else None


def why_flat(paid: Iterable[tuple[float | None, str]], span: tuple[float, float]) -> str:
    """Why no group of a training has different rewards, as sentences.

    Args:
        paid: Reward of every training rollout, None where it is in no group, and the reason for it.
        span: The lowest and the highest reward that there is.
    """
    scored = [(reward, reason) for reward, reason in paid if reward is not None]
    (low, high), found = span, {reward for reward, _ in scored}
    if len(found) > 1:
        return "All rollouts of each task have the same reward."
    only = found.pop()
    which = ", the highest" if only >= high else ", the lowest" if only <= low else ""
    said = f"All {len(scored):,} training rollouts have reward {only:g}{which}."
    return said if only >= high else f"{said} {most_often(Counter(reason for _, reason in scored))}"
