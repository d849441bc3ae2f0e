"""How much a run trained: optimizer steps, calls and tokens."""

from __future__ import annotations

import math

from harness.runs.reading import Run


def optimizer_steps(run: Run) -> list[tuple[int, int, int]]:
    """Return, for each training step, the step, optimizer steps so far and trained tokens so far.

    With `batching: by_rollout`, a training step has as many optimizer steps as configured, at most
    one per trained call; a trainer without `mini_batch_size` has one per training step. verl itself
    makes one of every `mini_batch_size` x `group_size` transitions: more trained roles mean more.
    """
    config, train = run.record["config"], run.record["config"]["train"]
    tasks = train.get("mini_batch_size") or train["batch_size"]
    fixed = None
    if "mini_batch_size" not in train or train.get("batching") == "by_rollout":
        fixed = math.ceil(train["batch_size"] / tasks)
    counts: list[tuple[int, int, int]] = []
    steps = tokens = 0
    for step, calls, trained in trained_by_step(run):
        by_rows = math.ceil(calls / (tasks * config["rollout"]["group_size"]))
        steps += by_rows if fixed is None else min(fixed, calls)
        tokens += trained
        counts.append((step, steps, tokens))
    return counts or [(0, 0, 0)]


def updates_weights(run: Run) -> bool:
    """Return whether the trainer updates weights. One that does not says so in its identity."""
    train = run.record["identity"]["train"]
    # Records of an earlier version say it by the lack of a learning rate.
    return bool(train.get("updates_weights", "learning_rate" in train))


def trained_by_step(run: Run) -> list[tuple[int, int, int]]:
    """Return training step, trained calls in it, and tokens of their replies; empty without any."""
    import polars as pl

    if not updates_weights(run):
        return []
    if len(run.training):
        counted = (
            run.training.lazy()
            .group_by("step")
            .agg(pl.sum("trained_transitions", "trained_tokens"))
            .sort("step")
        )
        return counted.collect().rows()
    # Gold answers are trained without rollouts, and their steps count them.
    names = ("taught_calls", "taught_tokens")
    if not {*names} <= {*run.steps.columns}:
        return []
    taught = run.steps.drop_nulls(names).sort("step")
    return taught.select("step", *(pl.col(name).cast(int) for name in names)).rows()


def amount_of_training(run: Run) -> tuple[int, int, int] | tuple[None, None, None]:
    """Return optimizer steps, trained calls and trained tokens; None where none are recorded."""
    counted = trained_by_step(run)
    if not counted:
        return None, None, None
    calls = tokens = 0
    for _, calls_of_step, tokens_of_step in counted:
        calls += calls_of_step
        tokens += tokens_of_step
    return optimizer_steps(run)[-1][1], calls, tokens
