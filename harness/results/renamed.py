"""What older runs hold, under the names and with the keys of today."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

OLDER = {"db_id": "cluster", "first_sql": "first_answer", "turns": "tool_calls"}
"""Older name -> name, of episode columns."""
OF_RECORDS = {"plugin": "agent", "plugin_distribution": "agent_distribution"}
"""Older name -> name, of keys of the record and of its configuration."""
LATER = {"program": "self_correcting_sql"}
"""Keys of the identity that older runs do not have, and what they all were."""
LATER_OF_TRAINING = {"credit": "shared", "algorithm": "grpo", "rejection_threshold": 0.5}
"""The same of its section `train`, and of that of the configuration."""
STEPS: Mapping[str, tuple[str, ...]] = {
    "step_s": ("timing_s/step",),
    "rollout_s": ("timing_s/gen",),
    "update_s": ("timing_s/update_actor", "timing_s/old_log_prob", "timing_s/ref"),
    "weights_s": ("timing_s/update_weights",),
    "checkpoint_s": ("timing_s/save_checkpoint",),
    "gradient_norm": ("actor/grad_norm",),
    "entropy": ("actor/entropy",),
    "clipped": ("actor/pg_clipfrac",),
    "cut": ("response_length/clip_ratio",),
    "rollout_probs_diff": ("training/rollout_probs_diff_max",),
    **{name: (f"training/{name}",) for name in ("calls", "merged_calls", "tokens", "saved_tokens", "chosen_tokens")},
}
"""Columns of older steps that add up to a measure: verl's own names alone."""
MEMORY_ONLY = ("actor_rollout_ref.model.enable_gradient_checkpointing",)
"""Options of verl that cost time or memory and decide nothing that is learned: not in the identity, where older runs
have them."""


def record(data: dict[str, Any]) -> dict[str, Any]:
    """The content of a `run.json`, of whatever age."""
    found = {OF_RECORDS.get(key, key): value for key, value in data.items()}
    if isinstance(config := found.get("config"), dict):
        found["config"] = config = {OF_RECORDS.get(key, key): value for key, value in config.items()}
        if isinstance(train := config.get("train"), dict):
            config["train"] = {**LATER_OF_TRAINING, **train}
    if isinstance(identity := found.get("identity"), dict):
        found["identity"] = {**LATER, **identity}
        if isinstance(train := identity.get("train"), dict):
            found["identity"]["train"] = {**LATER_OF_TRAINING, **train}
        if isinstance(options := identity.get("verl"), dict):
            found["identity"]["verl"] = deciding(options)
    return found


def columns(measure: str, there: Iterable[str]) -> list[str]:
    """The columns of a step, of those that are there, that add up to one of `harness.MEASURES`; empty where none is."""
    names = set(there)
    return [measure] if measure in names else [name for name in STEPS.get(measure, ()) if name in names]


def deciding(options: Mapping[str, Any]) -> dict[str, Any]:
    """verl's options without those of `MEMORY_ONLY`."""
    return {name: value for name, value in options.items() if name not in MEMORY_ONLY}


def tool_calls(text: str | None) -> list[dict[str, Any]]:
    """The tool calls of an episode from the column's JSON, `tool`, `arguments`, `text`, `ok` and times of each.

    Older runs knew one tool, whose argument stands by itself.
    """
    found: list[dict[str, Any]] = json.loads(text) if text else []
    return [
        call if "arguments" in call else {**call, "tool": "query_database", "arguments": {"sql": call["sql"]}}
        for call in found
    ]
