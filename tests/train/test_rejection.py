"""Rejection fine-tuning by verl's own update: the gradient is that of cross entropy on the chosen rollouts."""

from __future__ import annotations

import pytest

pytest.importorskip("verl")

import torch
from torch.nn.functional import cross_entropy
from transformers import Qwen2Config

from harness_verl import batches
from harness_verl.names import CROSS_ENTROPY

from .test_merging import Queue, dealt, gradients
from .test_packing import SHAPE, engine

TIED = (1.0, 0.0, 1.0, 0.5)
"""Rewards by session: of both tasks the first and the third are chosen."""


def queued(monkeypatch: pytest.MonkeyPatch, *, merge: bool) -> Queue:
    """A step's rows, in the place of TransferQueue."""
    queue = Queue(merge=merge)
    monkeypatch.setattr(batches, "tq", queue)
    monkeypatch.setattr(batches, "upsample_batch_to_divisible_size", queue.fill)
    return queue


def cross_entropies(queue: Queue, keys: list[str]) -> list[torch.Tensor]:
    """Gradients of plain torch's cross entropy, the mean over the tokens of an optimizer step's chosen rollouts."""
    model = engine(Qwen2Config(**SHAPE), "sdpa").module
    losses = []
    for key in keys:
        if key.startswith("pad") or TIED[int(key[3])] < 1:
            continue
        row = queue.rows[key]
        ids = torch.tensor([[*row.prompt_ids, *row.response_ids]])
        logits = model(ids).logits[0, len(row.prompt_ids) - 1 : -1]
        each = cross_entropy(logits, torch.tensor(row.response_ids), reduction="none")
        losses.append(each[torch.tensor(row.response_mask).bool()])
    torch.cat(losses).mean().backward()
    return [value.grad for value in model.parameters()]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("merge", [True, False], ids=["dialogues", "calls"])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_the_gradient_is_that_of_cross_entropy_on_the_chosen(
    monkeypatch: pytest.MonkeyPatch, packed: bool, merge: bool, parts: int
) -> None:
    grpo, _, _ = dealt(queued(monkeypatch, merge=merge), "shared", merge, parts, rewards=TIED)
    queue = queued(monkeypatch, merge=merge)
    steps, advantages, logged = dealt(queue, "shared", merge, parts, threshold=1.0, rewards=TIED)
    real = [[[key for key in keys if key in queue.about] for keys in one] for one in (steps, grpo)]
    assert real[0] == real[1]  # the same rows meet in the same optimizer steps
    found = gradients(queue, steps, advantages, packed, several=CROSS_ENTROPY)
    for keys, ours in zip(steps, found, strict=True):
        theirs = cross_entropies(queue, keys)
        assert max(float(value.abs().max()) for value in theirs) > 1e-2
        for one, other in zip(ours, theirs, strict=True):
            assert torch.allclose(one, other, atol=1e-5, rtol=1e-5), (one - other).abs().max()
    chosen = [
        row for key, row in queue.rows.items() if key in queue.about and TIED[int(key[3])] == 1
    ]
    assert logged["training/chosen_tokens"] == sum(sum(row.response_mask) for row in chosen)


def test_where_nothing_is_good_enough_no_token_has_a_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = queued(monkeypatch, merge=False)
    steps, advantages, logged = dealt(queue, "shared", False, 1, threshold=1.5)
    assert not advantages.any() and logged["training/chosen_tokens"] == 0
    (found,) = gradients(queue, steps, advantages, packed=True)
    assert not any(value.any() for value in found)
