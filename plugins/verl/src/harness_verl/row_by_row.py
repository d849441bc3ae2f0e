"""Compute packed rows on a CPU so that a row's results depend on that row alone, to the last bit.

A library chooses the order of a sum by the shapes that it sees. So every operation that sums
numbers, or does not round each number by itself (products, norms, activations, rotations,
attention, probabilities), takes the rows of a pass one by one, each in its own length. Additions
and multiplications of single numbers give the same result in any shape, and take all rows at once.
Gradients of weights are summed in the order of the rows.

A mixture of experts is not supported: its products have one row for each token that chose an
expert.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import Embedding, Linear, Module

Rows = Callable[[], Mapping[int, Sequence[int]]]
"""Tokens of each packed row, by their sum, a tensor's number of tokens. Empty with padded rows."""


class _LinearByRow(torch.autograd.Function):
    """A linear layer of `[1, tokens, width]`."""

    @staticmethod
    def forward(
        context: Any,
        given: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        sizes: Sequence[int],
    ) -> torch.Tensor:
        context.save_for_backward(given, weight)
        context.sizes = sizes
        found = given.new_empty(1, given.shape[1], len(weight))
        for row, made in zip(given[0].split(sizes), found[0].split(sizes), strict=True):
            _product(row, weight.t(), made, bias)
        return found

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        given, weight = context.saved_tensors
        asks_given, asks_weight, asks_bias, _ = context.needs_input_grad
        above = gradients[0][0].split(context.sizes)
        of_given = torch.empty_like(given) if asks_given else None
        if of_given is not None:
            for row, made in zip(above, of_given[0].split(context.sizes), strict=True):
                _product(row, weight, made)
        of_weight = torch.zeros_like(weight) if asks_weight else None
        of_bias = weight.new_zeros(len(weight)) if asks_bias else None
        for row, own in zip(above, given[0].split(context.sizes), strict=True):
            if of_weight is not None:
                of_weight.addmm_(row.t(), own)
            if of_bias is not None:
                of_bias += row.sum(0)
        return of_given, of_weight, of_bias, None


def _product(
    row: torch.Tensor, weight: torch.Tensor, made: torch.Tensor, bias: torch.Tensor | None = None
) -> None:
    if bias is None:
        torch.mm(row, weight, out=made)
    else:
        torch.addmm(bias, row, weight, out=made)


def take_rows_apart(model: Module, rows: Rows) -> None:
    """Let a model's layers compute packed rows one by one.

    Args:
        model: A model of transformers, which calls its layers with `[1, tokens, ...]`. The change
            applies to layers that contain no others.
        rows: Called at each call of a layer.
    """
    for module in model.modules():
        if next(module.children(), None) is None and not isinstance(module, Embedding):
            layer = _linear if type(module) is Linear else _any
            module.forward = partial(layer, module, module.forward, rows)


def _linear(
    module: Any, whole: Callable[..., torch.Tensor], rows: Rows, given: torch.Tensor
) -> torch.Tensor:
    sizes = rows().get(given.shape[1]) if given.dim() == 3 and len(given) == 1 else None
    if sizes is None:
        return whole(given)
    found: torch.Tensor = _LinearByRow.apply(given, module.weight, module.bias, sizes)
    return found


def _any(module: Any, whole: Any, rows: Rows, given: torch.Tensor, *more: Any, **named: Any) -> Any:
    sizes = rows().get(given.shape[1]) if given.dim() >= 2 and len(given) == 1 else None
    if sizes is None:
        return whole(given, *more, **named)

    def split(value: Any) -> Sequence[Any]:
        per_token = (
            isinstance(value, torch.Tensor)
            and value.dim() >= 2
            and value.shape[1] == given.shape[1]
        )
        return value.split(sizes, 1) if per_token else [value] * len(sizes)

    arguments = zip(*map(split, (given, *more)), strict=True)
    options = zip(*map(split, named.values()), strict=True) if named else [()] * len(sizes)
    results = []
    for row, values in zip(arguments, options, strict=True):
        results.append(whole(*row, **dict(zip(named, values, strict=True))))
    if isinstance(results[0], tuple):
        return tuple(torch.cat(parts, 1) for parts in zip(*results, strict=True))
    return torch.cat(results, 1)
