"""Where the rollout phase of a step goes: model calls, tools, framework; calls in flight, and the tail."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

TAIL = 0.25
"""Below this share of the peak in flight counts as the long tail."""


def spans_of(episodes: pd.DataFrame, steps: Iterable[int]) -> dict[int, tuple[float, float]]:
    """First start and last end of a step's training rollouts, in seconds since the epoch."""
    train = episodes[(episodes["phase"] == "train") & episodes["step"].isin(list(steps))]
    ends = train["started_s"] + train["elapsed_s"]
    return {
        int(step): (float(rows["started_s"].min()), float(ends[rows.index].max()))
        for step, rows in train.groupby("step")
    }


def profile(episodes: pd.DataFrame, transitions: pd.DataFrame | None, table: pd.DataFrame) -> dict[str, Any]:
    """Medians over the steps of `table` (index: step, column `rollout`: seconds of the phase)."""
    spans = spans_of(episodes, table.index)
    train = episodes[(episodes["phase"] == "train") & episodes["step"].isin(table.index)]
    result: dict[str, Any] = {
        "span_s": float(np.median([end - start for start, end in spans.values()])),
        "outside_span_s": float(np.median([table.loc[step, "rollout"] - (b - a) for step, (a, b) in spans.items()])),
        "rollout_mean_s": float(train["elapsed_s"].mean()),
        "tools_mean_s": float(train["turns"].map(_tool_s).mean()),
    }
    if transitions is None:
        return result | {"calls": "no transitions.parquet"}
    calls = transitions[(transitions["phase"] == "train") & transitions["step"].isin(table.index)]
    model_s = calls.groupby("rollout_id")["latency_s"].sum().reindex(train["rollout_id"]).fillna(0.0)
    result["model_mean_s"] = float(model_s.mean())
    result["framework_mean_s"] = result["rollout_mean_s"] - result["model_mean_s"] - result["tools_mean_s"]
    result["call_s_p50_p95"] = [float(calls["latency_s"].quantile(q)) for q in (0.5, 0.95)]
    result["gateway_s_p50_p95"] = [float(calls["gateway_s"].quantile(q)) for q in (0.5, 0.95)]
    curves = [in_flight(calls[calls["step"] == step], *span) for step, span in spans.items()]
    for name in ("mean_in_flight", "peak_in_flight", "tail_s", "idle_s"):
        result[name] = float(np.median([curve[name] for curve in curves]))
    result["idle_share"] = float(np.median([curve["idle_s"] / curve["span_s"] for curve in curves]))
    return result


def in_flight(calls: pd.DataFrame, start: float, end: float) -> dict[str, float]:
    """Calls under way at once between `start` and `end`: their mean over time, peak, and the time of few or none."""
    times = np.concatenate([calls["started_s"], calls["started_s"] + calls["latency_s"], [start, end]]).clip(start, end)
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


def _tool_s(turns: str) -> float:
    return sum(float(turn["elapsed_s"]) for turn in json.loads(turns))
