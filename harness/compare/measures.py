"""The figures of one run: its result, its agent's behaviour, and its cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast
from weakref import WeakKeyDictionary

from harness.compare.amounts import amount_of_training
from harness.compare.answers import failing_answers, unknown_answers
from harness.compare.by_role import role_figures
from harness.compare.keys import Behaviour, Cost, Figures, Signal, ToolUse
from harness.records import AGENT_OUTCOMES
from harness.runs.reading import Run
from harness.runs.schema import Accuracy, RunRecord
from harness.runs.training_signal import (
    least_to_train,
    mixed_groups,
    share_mixed,
    why_flat,
    why_untaught,
)
from harness.util.formatting import members
from harness.util.intervals import covered_s
from harness.util.parsing import finite_or_null, parse_cell
from harness.util.tool_calls import tools_unused

if TYPE_CHECKING:
    import polars as pl

PARTS = {"rollout": "rollout_s", "update": "update_s", "weights": "weights_s"}
"""The logged measure behind each part of the cost split."""

_KNOWN: WeakKeyDictionary[Run, Figures] = WeakKeyDictionary()


def measure(run: Run) -> Figures:
    """Return all figures of one run as plain data; None for figures that were not measured."""
    if run not in _KNOWN:
        _KNOWN[run] = _measure(run)
    return _KNOWN[run]


def _measure(run: Run) -> Figures:
    curve, val = run.val_curve(), run.validation()
    first, last = (min(curve), max(curve)) if curve else (None, None)
    result = run.record["result"]
    share, with_signal = signal(run)
    updates, trained_calls, trained_tokens = amount_of_training(run)
    return {
        "run": run.id,
        "seed": run.seed,
        "start": run.start,
        "status": run.record["status"],
        "reason": run.record.get("reason", ""),
        "launches": len(run.record["launches"]),
        "accuracy_initial": curve[0] if run.trained and first == 0 else None,
        "accuracy_final": None if last is None or (run.trained and last == 0) else curve[last],
        "val_curve": curve,
        "val_tasks": val["task_id"].n_unique(),
        "unscored": val["reward"].null_count(),
        "agent_failed": cast(float, val["outcome"].is_in(AGENT_OUTCOMES).mean())
        if len(val)
        else None,
        "steps": run.progress.step,
        "wall_s": result["wall_s"] if result else None,
        "gpu_hours": gpu_hours(run.record),
        **behaviour(val),
        **tool_use(val),
        "tools_unused": never_used_tools(run),
        "reward_parts": reward_parts(val),
        "failures": failures(run.episodes),
        "unknown_answers": unknown_answers(run.episodes),
        "by_difficulty": _by(val, "difficulty"),
        "by_cluster": _by(val, "cluster"),
        "by_role": role_figures(run),
        **cost(run),
        "overhead_ms_per_call": overhead_ms(run),
        "gateway_ms_per_call": None
        if run.transitions is None
        else _median_ms(run.transitions["gateway_s"]),
        "optimizer_steps": updates,
        "trained_transitions": trained_calls,
        "trained_tokens": trained_tokens,
        "signal": share,
        **with_signal,
        "trained_by_role": run.trained_by_role,
        "parity": parity_label(run),
    }


def signal(run: Run) -> tuple[float | None, Signal]:
    """Return the training signal; None for a figure if calls of a rollout are paid differently."""
    if untaught := why_untaught(run.steps.iter_rows(named=True)):
        return None, {"signal_by_step": {}, "no_signal": untaught}
    wanted = {"phase", "step", "task_id", "used_reward", "reward_reason"}
    shared = run.record["config"].get("train", {}).get("credit", "shared") == "shared"
    if not (run.trained and shared and wanted <= set(run.episodes.columns)):
        return None, {"signal_by_step": {}, "no_signal": ""}
    # A group of rollouts with equal rewards has no advantage over its mean, so it gives no gradient
    # and its step teaches nothing. Only that explains why a training did not change.
    least = least_to_train(run.record["identity"]["train"])
    counted = mixed_groups(run.training.select("step", "task_id", "used_reward").rows(), least)
    share = share_mixed(counted.values())
    paid = run.training.select("used_reward", "reward_reason").rows() if share == 0 else []
    by_step = {}
    for step, (groups, mixed) in counted.items():
        if groups:
            by_step[step] = mixed / groups
    flat = why_flat(paid, run.span, least) if paid else ""
    return share, {"signal_by_step": by_step, "no_signal": flat}


def behaviour(rows: pl.DataFrame) -> Behaviour:
    """Return means per successful rollout; failed rollouts are incomplete."""
    import polars as pl

    if "ok" not in rows["outcome"]:
        return cast(Behaviour, dict.fromkeys(Behaviour.__annotations__))
    reward, first_reward = pl.col("reward"), pl.col("first_reward")
    # A rewrite counts as help or harm only where both answers were scored.
    both_scored = reward.is_not_null() & first_reward.is_not_null()
    rewritten = (pl.col("rewrites") > 0) & both_scored
    figures = (
        rows.lazy()
        .filter(outcome="ok")
        .select(
            transitions_per_rollout=pl.mean("transitions"),
            prompt_tokens_per_rollout=pl.mean("prompt_tokens"),
            response_tokens_per_rollout=pl.mean("response_tokens"),
            rewritten=rewritten.sum(),
            helped=(rewritten & (reward > first_reward)).sum(),
            hurt=(rewritten & (reward < first_reward)).sum(),
        )
    )
    return cast(Behaviour, figures.collect().row(0, named=True))


def tool_use(rows: pl.DataFrame) -> ToolUse:
    """Return the number of offered and parsed tool calls, and of replies that look like a call."""
    if not counts_tools(rows):
        return {"calls_with_tools": None, "parsed_calls": None, "unread_calls": None}
    return {
        "calls_with_tools": cast(int, rows["calls_with_tools"].sum()),
        "parsed_calls": cast(int, rows["parsed_calls"].sum()),
        "unread_calls": cast(int, rows["unread_calls"].sum()),
    }


def counts_tools(rows: pl.DataFrame) -> bool:
    """Return whether episodes have the counts of tool calls, which not every record has."""
    names = ("calls_with_tools", "parsed_calls", "unread_calls")
    # A column of nothing but nulls comes from older records, which did not count.
    return all(name in rows.columns and rows[name].null_count() < len(rows) for name in names)


def never_used_tools(run: Run) -> bool:
    """Return whether a run offered tools that were almost never called in a validation."""
    rows = run.episodes
    if not counts_tools(rows):
        return False
    # One validation with calls suffices: the parser can read them, and that the policy stopped
    # calling is a result of its training.
    ever_offered = False
    for validation in rows.filter(rows["phase"] == "val").partition_by("step"):
        offered_in = cast(int, (validation["calls_with_tools"] > 0).sum())
        parsed_in = cast(int, (validation["parsed_calls"] > 0).sum())
        if not offered_in:
            continue
        ever_offered = True
        if not tools_unused(offered_in, parsed_in):
            return False
    return ever_offered


def reward_parts(rows: pl.DataFrame) -> dict[str, float]:
    """Return the mean of every part of the reward, over the verdicts that have it."""
    values: dict[str, list[float]] = {}
    for text in rows["reward_parts"].drop_nulls() if "reward_parts" in rows.columns else ():
        for name, value in parse_cell(text, {}).items():
            if (part := finite_or_null(value)) is not None:
                values.setdefault(name, []).append(part)
    return mean_by_name(values)


def mean_by_name(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the mean of the values of every name."""
    means = {}
    for name, measured in values.items():
        # `sum` adds floats with a correction of rounding, so a loop with `+=` would differ.
        means[name] = sum(measured) / len(measured)
    return means


def failures(rows: pl.DataFrame) -> dict[str, int]:
    """Count failed episodes by outcome, unscored ones, and those with a failing final answer."""
    if not len(rows):
        return {}
    ended = rows["outcome"]
    counts = dict(sorted(ended.filter(ended != "ok").value_counts().rows()))
    # Both of these ended well: an unscored rollout is no failure of the agent, and an answer that
    # does not run is scored as wrong.
    unscored = ((ended == "ok") & rows["reward"].is_null()).sum()
    broken = failing_answers(rows)
    if unscored:
        counts["unscored"] = unscored
    if broken:
        counts["answer_fails"] = broken
    return counts


def cost(run: Run) -> Cost:
    """Return seconds per step without checkpoints and validation, and the shares of its parts."""
    rows = run.steps.drop_nulls("step_s") if "step_s" in run.steps.columns else run.steps.clear()
    if not len(rows):
        return {"step_s": None, "shares": {}}
    # How often a checkpoint is written is a setting, so its time is no property of the arm.
    net = rows["step_s"]
    if "checkpoint_s" in rows.columns:
        net = net - rows["checkpoint_s"].fill_null(0)
    total = cast(float, net.sum())
    if total <= 0:
        return {"step_s": cast(float, net.median()), "shares": {}}
    shares = {}
    for part, column in PARTS.items():
        seconds = cast(float, rows[column].sum()) if column in rows.columns else 0.0
        shares[part] = seconds / total
    shares["other"] = max(0.0, 1.0 - sum(shares.values()))
    # The median, so that one slow step, such as the first of a launch, does not count.
    return {"step_s": cast(float, net.median()), "shares": shares}


def dialogues(run: Run) -> tuple[float, float] | None:
    """Return shares of trained calls merged into an earlier row, and of saved tokens, or None."""
    names = ("calls", "merged_calls", "tokens", "saved_tokens")
    if not {*names} <= {*run.steps.columns}:
        return None
    calls, merged, tokens, saved = run.steps.select(names).sum().row(0)
    return (merged / calls, saved / (tokens + saved)) if calls else None


def chosen_tokens(run: Run) -> int | None:
    """Return the trained tokens with a gradient; None if all have one, or if not counted."""
    return int(run.steps["chosen_tokens"].sum()) if "chosen_tokens" in run.steps.columns else None


def gpu_hours(record: RunRecord) -> float | None:
    """Return accelerator hours of all launches; None without accelerators."""
    result, config = record["result"], record["config"]
    if result is None or record["device"] == "cpu":
        return None
    return result["wall_s"] * int(config.get("gpus", 1)) * int(config.get("nodes", 1)) / 3600


def overhead_ms(run: Run) -> float | None:
    """Return the framework's own time per call, in milliseconds.

    The time of an attempt that is neither a call (as the gateway saw it) nor that of a tool,
    divided by its calls; the median over successful attempts. Needs transitions.
    """
    outside_s = framework_s(run)
    if outside_s is None:
        return None
    rows = run.episodes.select("outcome", "transitions", outside_s=outside_s).filter(outcome="ok")
    # Divided per rollout before the median is taken: a sum over all rollouts would be ruled by the
    # few that waited long for the processor.
    per_call = rows["outside_s"] / rows["transitions"]
    return _median_ms(per_call.filter(rows["transitions"] > 0))


def framework_s(run: Run) -> pl.Series | None:
    """Return seconds per rollout without a running model or tool call; None without transitions."""
    if "framework_s" in run.episodes.columns:  # a published copy
        return run.episodes["framework_s"]
    if run.transitions is None or not len(run.episodes):
        return None
    import polars as pl

    end = pl.col("started_s") + pl.col("latency_s")
    timed = run.transitions.filter(end.is_not_null())
    calls = dict(timed.group_by("attempt_id").agg(pl.struct(pl.col("started_s"), end=end)).rows())
    busy: list[float | None] = []
    for attempt, tools in run.episodes.select("attempt_id", "tool_calls").rows():
        busy.append(_busy_s(calls[attempt], tools) if attempt in calls else None)
    return run.episodes["elapsed_s"] - pl.Series(busy, dtype=pl.Float64)


def parity_label(run: Run) -> str:
    """Return `reference`, `strict HASH`, `idiomatic`, `mixture` or `none`."""
    from harness.plugins import is_reference

    certificate = run.parity
    if len(members(run.record["agent"])) > 1:
        return "mixture"
    if is_reference(run.record["agent"]):
        return "reference"
    if not certificate:
        return "none"
    return f"strict {certificate['hash'][:8]}" if certificate["strict"] else "idiomatic"


def _by(rows: pl.DataFrame, column: str) -> dict[str, Accuracy]:
    rewards: dict[str, list[float]] = {}
    tasks: dict[str, set[str]] = {}
    scored = rows.lazy().select(column, "task_id", "reward").drop_nulls().sort(column)
    for name, task, reward in scored.collect().rows():
        rewards.setdefault(name, []).append(reward)
        tasks.setdefault(name, set()).add(task)
    groups: dict[str, Accuracy] = {}
    for name, known in rewards.items():
        # A task may have several samples, so tasks are counted, not rewards.
        groups[name] = {"accuracy": sum(known) / len(known), "tasks": len(tasks[name])}
    return groups


def _busy_s(calls: list[dict[str, float]], tools: str | None) -> float:
    """Return the seconds with a running model or tool call.

    A tool that calls a model is a member of a team.
    """
    spans: list[tuple[float, float]] = []
    for tool in parse_cell(tools, []):
        if not isinstance(tool, dict):
            continue
        start, elapsed_s = tool.get("started_s"), tool.get("elapsed_s")
        if not start or elapsed_s is None:
            continue
        # The model's calls inside a tool are counted below, and the time between them is the
        # member's own framework, not a tool's.
        end = start + elapsed_s
        if not _starts_within(calls, start, end):
            spans.append((start, end))
    for call in calls:
        start, end = call.values()
        spans.append((start, end))
    return covered_s(spans)


def _starts_within(calls: Iterable[Mapping[str, float]], start: float, end: float) -> bool:
    """Return whether any call started between two times."""
    return any(start < call["started_s"] < end for call in calls)


def _median_ms(seconds: pl.Series) -> float | None:
    median = cast("float | None", seconds.cast(float).median())
    return None if median is None else median * 1000
