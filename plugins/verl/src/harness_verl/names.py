"""verl's names for the measures of a step that harness reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PACKED = "harness_packed"
"""Name of harness's attention (`packing.py`) in transformers."""
SHARED = "harness_shared"
"""Name of the same attention with shared prefixes of rows (`prefixes.py`)."""
ON_POLICY = "harness_on_policy"
"""Name of harness's policy loss (`packing.py`) in verl."""
ABOUT = "harness_row"
"""Key in a row's `extra_fields`. It holds `calls`, with each call's kind and number of response
tokens; `values`, for all kinds of its rollout; `saved` tokens; and `again`, whether its role had a
row before."""
CROSS_ENTROPY = "harness_cross_entropy"
"""Name of the policy loss for several optimizer steps with `train.algorithm: rejection`."""
SUPERVISED = "harness_supervised"
"""Name of the policy loss with `train.algorithm: supervised`."""
MEASURES: Mapping[str, tuple[str, ...]] = {
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
    "calls": ("training/calls",),
    "merged_calls": ("training/merged_calls",),
    "tokens": ("training/tokens",),
    "saved_tokens": ("training/saved_tokens",),
    "chosen_tokens": ("training/chosen_tokens",),
    "taught_calls": ("training/taught_calls_total",),
    "taught_tokens": ("training/taught_tokens_total",),
    "left_out": ("training/left_out_total",),
    "cross_entropy": ("training/cross_entropy",),
}
"""The measures of a step, and which of verl's figures add up to each."""

LOG = "verl.log"
"""Name of the log with the output of verl's processes."""
WARNS = "harness warns: "
"""Prefix of lines of verl's log that are shown to the user."""
SESSION_FILE = ".session.json"
"""File in a run's folder with the addresses of its services, for verl's processes."""
QUEUE_KEY = ".transfer-queue-key"
"""File with the key that TransferQueue requires of verl's processes, readable by its owner only."""
LOST_FILE = ".lost"
"""File with the reason why a rollout could not be recorded; verl would continue without it."""


def measured(data: Mapping[str, Any]) -> dict[str, float]:
    """Return the measures of a step, without those that verl did not report."""
    measures = {}
    for name, parts in MEASURES.items():
        # Several figures of verl may be parts of one measure, and some are missing in some modes.
        figures = []
        for part in parts:
            if part in data:
                figures.append(data[part])
        if figures:
            measures[name] = float(sum(figures))
    # verl times the wait for rows as generation, also where gold answers are trained.
    if "taught_calls" in measures:
        measures.pop("rollout_s", None)
    return measures
