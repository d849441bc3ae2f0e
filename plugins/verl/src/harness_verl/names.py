"""verl's names for what harness reads of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PACKED = "harness_packed"
"""Name of our attention (`packing.py`) among those of transformers."""
SHARED = "harness_shared"
"""The same attention where rows share the prefixes that they begin with (`prefixes.py`)."""
ON_POLICY = "harness_on_policy"
"""Name of our policy loss (`packing.py`) among verl's."""
ABOUT = "harness_row"
"""Among a row's `extra_fields`: of each of its `calls` the kind and its tokens of the response; `values` of all kinds
of its rollout; tokens `saved`; whether its role had a row before (`again`)."""
CROSS_ENTROPY = "harness_cross_entropy"
"""The same where a step is several optimizer steps, for `train.algorithm: rejection`."""
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
    **{
        name: (f"training/{name}",)
        for name in ("calls", "merged_calls", "tokens", "saved_tokens", "chosen_tokens")
    },
}
"""What harness reads of a step, and which of verl's figures add up to it."""

LOG = "verl.log"
"""Among a run's logs: what verl's processes say."""
WARNS = "harness warns: "
"""Begins a line of verl's log that whoever started the run is shown."""
SESSION_FILE = ".session.json"
"""In a run's folder: where its services are, for verl's processes."""
QUEUE_KEY = ".transfer-queue-key"
"""Beside it: the key that TransferQueue requires of verl's processes, readable by its owner only."""
LOST_FILE = ".lost"
"""Beside it: why a rollout came to nothing that could be recorded; verl itself would go on without it."""


def measured(data: Mapping[str, Any]) -> dict[str, float]:
    """What harness reads of a step, of verl's figures that are there."""
    found = {name: [data[one] for one in of if one in data] for name, of in MEASURES.items()}
    return {name: float(sum(figures)) for name, figures in found.items() if figures}
