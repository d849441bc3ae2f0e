"""Forward passes in which what is computed of a request depends on that request alone, to the last bit.

Sums of another order give other last bits, once in a million tokens another token, and then another training. A
library chooses the order of a sum by the shapes and strides that it sees. So no operation on a request's numbers has a
shape or a stride that depends on the other requests:

- a prompt is read alone, in its own length;
- a decode step is a pass of `ROWS` rows, however many requests there are; rows without one idle along;
- its products with weights are taken in blocks of `BLOCK` rows, and blocks without a request are left out;
- its attention is taken row by row, each over its own length. The cache's strides are those of its capacity.

What is left is where in a pass a row stands. Whether that makes a difference on this machine is tried at the start:
equal rows must come out equal. Where they do not, the pass takes one thread, and if that is not enough, one row. So
does a mixture of experts, whose products have as many rows as requests chose an expert.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import Linear
from torch.nn.functional import linear
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin

from harness.policies.attention import attend, unknown

log = logging.getLogger(__name__)

ROWS = 64
"""Rows of a decode step's pass."""
LANES = 2
"""Prompts read at once, by a share of the threads each; a prompt is read by as many whoever else is there."""
BLOCK = 16
"""Rows of a product with weights, and of sampling."""
TRIAL = 70
"""Tokens of the prompt with which it is tried whether rows are alike."""
ATTENTION = "harness_by_row"
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""How configurations of mixtures of experts call their number."""


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: Any,
    value: Any,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of a prompt, or, where the cache gives itself, of one new token a row."""
    if asked := unknown(options):
        raise NotImplementedError(
            f"{type(module).__name__} asks for {asked}, which harness's policy server does not compute: serve this "
            "model with another server, and name it with --endpoint"
        )
    if isinstance(key, _Seats):
        return key.attend(query, scaling, sliding_window), None
    return attend(query, key, value, scaling, sliding_window).transpose(1, 2), None


# No mask is registered beside it: transformers then makes none.
AttentionInterface.register(ATTENTION, _attention)


@dataclass(frozen=True)
class Read:
    """What reading a prompt gave: logits of the next token, [1, vocabulary]; keys and values of each layer."""

    logits: torch.Tensor
    layers: list[tuple[torch.Tensor, torch.Tensor]]
    """[key heads, positions, width] each."""


class _Layer(CacheLayerMixin):
    """A layer's cache, as far as transformers asks about it."""

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None: ...

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_cache_shape(self) -> int:
        return -1


class _Prompt(_Layer):
    """Keeps what a prompt's pass computes."""

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> Any:
        self.keys, self.values = key_states, value_states
        return key_states, value_states


class _Seats(_Layer):
    """Keys and values of all seats, [seats, key heads, positions, width]; memory is taken where they are written."""

    keys: torch.Tensor
    values: torch.Tensor
    is_initialized: bool
    first = 0
    """The first seat of the pass under way."""
    lengths: Sequence[int] = ()
    """Positions of each of its requests, the new token's included."""
    at: tuple[torch.Tensor, torch.Tensor]
    """Where they write their new tokens: seats and positions."""

    def __init__(self, seats: int, positions: int) -> None:
        super().__init__()
        self._shape = seats, positions

    def _begin(self, heads: int, width: int) -> None:
        if not self.is_initialized:
            seats, positions = self._shape
            self.keys, self.values = (torch.empty(seats, heads, positions, width) for _ in range(2))
            self._by_seat = list(zip(self.keys.split(1), self.values.split(1), strict=True))
            self.is_initialized = True

    def fill(self, seat: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Begin a seat with a prompt's."""
        heads, length, width = keys.shape
        self._begin(heads, width)
        self.keys[seat, :, :length], self.values[seat, :, :length] = keys, values

    def move(self, seat: int, to: int, length: int) -> None:
        """Let a request change its seat."""
        for whole in (self.keys, self.values):
            whole[to, :, :length] = whole[seat, :, :length]

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> Any:
        self._begin(key_states.shape[1], key_states.shape[3])
        seats, positions = self.at
        self.keys[seats, :, positions] = key_states[: len(seats), :, 0]
        self.values[seats, :, positions] = value_states[: len(seats), :, 0]
        return self, self

    def attend(self, query: torch.Tensor, scale: float | None, window: int | None) -> torch.Tensor:
        """Attention of a pass's rows, [rows, heads, 1, width] -> [rows, 1, heads, width]."""
        rows = query.split(1)
        seats = self._by_seat[self.first : self.first + len(self.lengths)]
        with _one_thread():
            found = [
                attend(row, keys.narrow(2, 0, length), values.narrow(2, 0, length), scale, window)
                for row, (keys, values), length in zip(rows, seats, self.lengths, strict=False)
            ]
        return torch.cat([*found, *map(torch.zeros_like, rows[len(found) :])]).transpose(1, 2)


@contextmanager
def _one_thread() -> Iterator[None]:
    """For operations so small that waking a second thread takes longer than they do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Passes:
    """A model's passes; all of them, and `settle`, asked for in one thread, since OpenMP's threads belong to it.

    Args:
        model: A causal LM in evaluation mode, on the CPU. Its attention and its linear layers are made ours.
        seats: Requests whose keys and values are kept at once.
        positions: Of the longest request.
    """

    def __init__(self, model: Any, seats: int, positions: int) -> None:
        model.set_attn_implementation(ATTENTION)
        self.model = model
        mixture = any(getattr(model.config, name, None) for name in EXPERTS)
        self.rows = 1 if mixture else ROWS
        self._blocks = 0
        """Blocks of rows with a request, in the pass under way."""
        self._settled = False
        self._lanes: ThreadPoolExecutor | None = None
        seats = -(-seats // ROWS) * ROWS
        self._layers = [_Seats(seats, max(positions, TRIAL + 1)) for _ in range(model.config.num_hidden_layers)]
        self._cache = Cache(layers=self._layers)
        for module in model.modules():
            if type(module) is Linear:
                module.forward = partial(self._linear, module)

    def read(self, *prompts: Sequence[int]) -> list[Read]:
        """Read prompts, each alone: in `LANES` at once, since a small model's prompt does not fill two cores."""
        threads = torch.get_num_threads()
        if self._lanes is None:
            each = max(1, threads // LANES)
            self._lanes = ThreadPoolExecutor(LANES, "prompts", torch.set_num_threads, (each,))
        found = list(self._lanes.map(self._read, prompts))
        torch.set_num_threads(threads)  # what a lane was told is also what threads begin with that come later
        return found

    def _read(self, prompt: Sequence[int]) -> Read:
        with torch.inference_mode():
            layers = [_Prompt() for _ in self._layers]
            ids = torch.tensor([prompt])
            found = self.model(input_ids=ids, past_key_values=Cache(layers=layers), use_cache=True, logits_to_keep=1)
            return Read(found.logits[:, -1], [(at.keys[0], at.values[0]) for at in layers])

    def sit(self, seat: int, read: Read) -> None:
        """Begin a seat with a prompt."""
        for layer, (keys, values) in zip(self._layers, read.layers, strict=True):
            layer.fill(seat, keys, values)

    def move(self, seat: int, to: int, length: int) -> None:
        """Let a request of so many positions change its seat."""
        for layer in self._layers:
            layer.move(seat, to, length)

    def step(self, first: int, tokens: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """Logits after one more token each, of some seats that follow each other.

        Args:
            first: The first seat.
            tokens: The new token of each; `rows` at most.
            positions: Where it stands in its sequence.

        Returns:
            [rows, vocabulary], of which the first are theirs.
        """
        idle = [0] * (self.rows - len(tokens))
        at = torch.arange(first, first + len(tokens)), torch.tensor(positions)
        lengths = [position + 1 for position in positions]
        for layer in self._layers:
            layer.first, layer.lengths, layer.at = first, lengths, at
        self._blocks = -(-len(tokens) // BLOCK)
        found: torch.Tensor = self.model(
            input_ids=torch.tensor([*tokens, *idle])[:, None],
            position_ids=torch.tensor([*positions, *idle])[:, None],
            past_key_values=self._cache,
            use_cache=True,
        ).logits[:, -1]
        return found

    def settle(self) -> None:
        """See to it, once, that equal rows come out equal; before any seat is taken."""
        if self._settled:
            return
        if self.rows > 1 and not self._alike():
            threads = torch.get_num_threads()
            log.info("rows of a pass are not computed alike with %d threads here: one thread", threads)
            torch.set_num_threads(1)
            self._lanes = None
            if not self._alike():
                log.info("nor with one thread: one row at a time")
                self.rows = 1
        self._settled = True

    def _alike(self) -> bool:
        size = self.model.config.vocab_size
        prompt = [(7 * place + 1) % size for place in range(TRIAL)]
        (read,) = self.read(prompt)
        for seat in range(self.rows):
            self.sit(seat, read)
        found = self.step(0, prompt[:1] * self.rows, [TRIAL] * self.rows)
        return bool(torch.equal(found, found[:1].expand_as(found)))

    def _linear(self, module: Linear, given: torch.Tensor) -> torch.Tensor:
        """A linear layer: of a prompt whole, of a step's rows in blocks."""
        if len(given) == 1:
            return linear(given, module.weight, module.bias)
        blocks = given.split(BLOCK)[: self._blocks]
        found = [linear(block, module.weight, module.bias) for block in blocks]
        if idle := len(given) - self._blocks * BLOCK:
            found.append(given.new_zeros(idle, *given.shape[1:-1], module.out_features))
        return torch.cat(found)
