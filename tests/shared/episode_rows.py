"""Rows of logs with the columns that every reader needs, and no more."""

from __future__ import annotations


def episode_of(
    step: int, reward: float | None, phase: str = "train", **changes: object
) -> dict[str, object]:
    """Return a row of `episodes`; `changes` replace its columns, or add some."""
    return {
        "step": step,
        "phase": phase,
        "task_id": "t",
        "outcome": "ok",
        "reward": reward,
        "reward_reason": "",
        "first_reward": None,
        "rewrites": 0,
        "transitions": 1,
        "trained_transitions": 1,
        "prompt_tokens": 1,
        "response_tokens": 1,
        "elapsed_s": 1.0,
        **changes,
    }
