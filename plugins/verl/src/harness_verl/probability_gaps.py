"""How far the rollout's probabilities of sampled tokens are from the trainer's.

Engines round differently, so that a token's probabilities differ by up to 0.3 in bfloat16. A larger
difference has another cause, for example a probability that was reported for another token. Such
tokens are logged with their row, because the step's metrics hold only the largest difference.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from verl.utils.metric import Metric

logger = logging.getLogger(__name__)

LARGE = 0.5
"""Differences above it are logged."""
MOST_LOGGED = 5
"""Tokens that one pass logs at most, the largest differences first."""
CONTEXT = 20
"""Tokens of the prompt's end that are logged."""


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
    if largest > LARGE:
        _log(gaps * mask, ours, theirs, micro_batch)
    return {
        "actor/rollout_probs_diff_max": Metric("max", largest),
        "actor/rollout_probs_diff_mean": Metric("mean", trained.mean()),
    }


def _log(gaps: torch.Tensor, ours: torch.Tensor, theirs: torch.Tensor, micro_batch: Any) -> None:
    """Log the tokens with the largest differences, each with its reply and the prompt's end."""
    ids = micro_batch["input_ids"].unbind()
    lengths = [len(mask) for mask in micro_batch["response_mask"].unbind()]
    places = gaps.flatten().argsort(descending=True)[:MOST_LOGGED].tolist()
    for place in places:
        row, position = divmod(place, gaps.shape[1])
        if gaps[row, position] <= LARGE:
            return
        tokens = ids[row].tolist()
        start = len(tokens) - lengths[row]
        reply = tokens[start:]
        logger.warning(
            "token %d has probability %.4f in the rollout and %.4f in the trainer: token %d of the "
            "%d of a reply after a prompt of %d tokens. The reply's ids: %s; the prompt's last: %s",
            reply[position],
            theirs[row, position].exp().item(),
            ours[row, position].exp().item(),
            position + 1,
            len(reply),
            start,
            reply,
            tokens[max(0, start - CONTEXT) : start],
        )
