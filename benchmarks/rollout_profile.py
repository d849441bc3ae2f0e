"""Profile a step's rollout phase: model calls, tools, framework; calls in flight, and the tail."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl

TAIL = 0.25
"""Below this share of the peak in flight counts as the long tail."""


def spans_of(episodes: pl.DataFrame, steps: Iterable[int]) -> dict[int, tuple[float, float]]:
    """Return first start and last end of a step's training rollouts, in epoch seconds."""
    train = episodes.filter(pl.col("step").is_in(list(steps)), phase="train").group_by("step")
    ends = (pl.col("started_s") + pl.col("elapsed_s")).max().alias("end")
    return {
        step: (start, end)
        for step, start, end in train.agg(pl.min("started_s"), ends).sort("step").rows()
    }


def profile(
    episodes: pl.DataFrame, transitions: pl.DataFrame | None, table: pl.DataFrame
) -> dict[str, Any]:
    """Return medians over the steps of `table` (`number`, and `rollout`: seconds of the phase)."""
    steps = table["number"].to_list()
    spans, rollout = spans_of(episodes, steps), dict(table.select("number", "rollout").rows())
    train = episodes.filter(pl.col("step").is_in(steps), phase="train")
    result: dict[str, Any] = {
        "span_s": float(np.median([end - start for start, end in spans.values()])),
        "outside_span_s": float(
            np.median([rollout[step] - (b - a) for step, (a, b) in spans.items()])
        ),
        "rollout_mean_s": train["elapsed_s"].mean(),
        "tools_mean_s": float(np.mean([_tool_s(calls) for calls in train["tool_calls"]])),
    }
    if transitions is None:
        return result | {"calls": "no transitions.parquet"}
    calls = transitions.filter(pl.col("step").is_in(steps), phase="train")
    model_s = calls.filter(calls["rollout_id"].is_in(train["rollout_id"].to_list()))[
        "latency_s"
    ].sum()
    result["model_mean_s"] = model_s / len(train)
    result["framework_mean_s"] = (
        result["rollout_mean_s"] - result["model_mean_s"] - result["tools_mean_s"]
    )
    result["call_s_p50_p95"] = np.quantile(calls["latency_s"], (0.5, 0.95)).tolist()
    result["gateway_s_p50_p95"] = np.quantile(calls["gateway_s"], (0.5, 0.95)).tolist()
    curves = [in_flight(calls.filter(step=step), *span) for step, span in spans.items()]
    for name in ("mean_in_flight", "peak_in_flight", "tail_s", "idle_s"):
        result[name] = float(np.median([curve[name] for curve in curves]))
    result["idle_share"] = float(np.median([curve["idle_s"] / curve["span_s"] for curve in curves]))
    return result


def in_flight(calls: pl.DataFrame, start: float, end: float) -> dict[str, float]:
    """Return calls in flight between `start` and `end`: mean, peak, and time with few or none."""
    times = np.concatenate(
        [calls["started_s"], calls["started_s"] + calls["latency_s"], [start, end]]
    ).clip(start, end)
    changes = np.concatenate([np.ones(len(calls)), -np.ones(len(calls)), [0, 0]])
    order = np.lexsort((changes, times))
    lasting = np.diff(times[order])
    level = changes[order].cumsum()[:-1]
    peak = float(level.max(initial=0.0))
    return {
        "span_s": end - start,
        "mean_in_flight": float((level * lasting).sum() / max(end - start, 1e-9)),
        "peak_in_flight": peak,
        "tail_s": float(lasting[level < TAIL * peak].sum()),
        "idle_s": float(lasting[level == 0].sum()),
    }


def _tool_s(calls: str) -> float:
    return sum(float(call["elapsed_s"]) for call in json.loads(calls))
