"""How far the rollout's probabilities of sampled tokens are from the trainer's.

Engines round differently: in published trainings in bfloat16 a token's probabilities differ by up
to 0.31. A larger difference has another cause, for example a probability that was reported for
another token. Such tokens are logged with their surroundings, because the step's metrics hold only
the largest difference.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from verl.utils.metric import Metric

logger = logging.getLogger(__name__)

LARGE = 0.5
"""Differences above it are logged, and those that are not a number."""
MOST_LOGGED = 5
"""Tokens that one pass logs at most, the largest differences first."""
CONTEXT = 20
"""Tokens before and after it that are logged."""


def gap_metrics(ours: torch.Tensor, micro_batch: Any) -> dict[str, Metric]:
    """Return the largest and the mean difference of a pass, and log tokens with a large one.

    Args:
        ours: The trainer's log-probabilities of the replies, `[rows, longest reply]`.
        micro_batch: The pass: the rollout's log-probabilities, the mask of trained tokens and the
            token ids of each row, as nested tensors.
    """
    theirs = micro_batch["old_log_probs"].to_padded_tensor(0.0).to(ours.device)
    mask = micro_batch["response_mask"].to_padded_tensor(0.0).to(ours.device).bool()
    gaps = (ours.exp() - theirs.exp()).abs()
    trained = gaps[mask]
    trained = trained if len(trained) else trained.new_zeros(1)  # of a pass of masked rows alone
    largest = trained.max()
    if not largest <= LARGE:
        # A difference that is not a number counts as the largest possible one.
        _log(gaps.nan_to_num(1.0).masked_fill(~mask, 0), ours, theirs, micro_batch)
    return {
        "actor/rollout_probs_diff_max": Metric("max", largest),
        "actor/rollout_probs_diff_mean": Metric("mean", trained.mean()),
    }


def _log(gaps: torch.Tensor, ours: torch.Tensor, theirs: torch.Tensor, micro_batch: Any) -> None:
    """Log the tokens with the largest differences, each with the tokens around it."""
    ids = micro_batch["input_ids"].unbind()
    lengths = [len(mask) for mask in micro_batch["response_mask"].unbind()]
    places = gaps.flatten().argsort(descending=True)[:MOST_LOGGED].tolist()
    for place in places:
        row, position = divmod(place, gaps.shape[1])
        if gaps[row, position] <= LARGE:
            return
        tokens = ids[row].tolist()
        first = len(tokens) - lengths[row]
        at = first + position
        logger.warning(
            "token %d has probability %.4f in the rollout and %.4f in the trainer: number %d of %d "
            "after a prompt of %d tokens. Before it: %s. After it: %s",
            tokens[at],
            theirs[row, position].exp().item(),
            ours[row, position].exp().item(),
            position + 1,
            lengths[row],
            first,
            tokens[max(0, at - CONTEXT) : at],
            tokens[at + 1 : at + 1 + CONTEXT],
        )
