"""Forward passes in which a request's results depend on that request alone, to the last bit.

A sum in another order has other last bits; once in a million tokens that gives another token, and
then another training. A library chooses the order of a sum by the shapes and strides that it sees.
So no operation on a request's numbers has a shape or a stride that depends on the other requests:

- a prompt is read alone, in its own length;
- a decode step consists of passes of `ROWS` rows, however many requests there are; some rows idle;
- its products with weights take blocks of `BLOCK` rows, and blocks without a request are left out;
- its attention takes rows one by one, each over its own length. The cache's strides are those of
  its capacity.

The position of a row in a pass remains. A trial at the start shows whether it makes a difference on
this machine: equal rows must have equal results. If they do not, the pass uses one thread, and if
that is not enough, one row. So does a mixture of experts, because its products have one row for
each request that chose an expert.

A small model reads two prompts and makes two passes at once, in lanes with a share of the threads
each. One lane alone does not fill two cores, and threads that wait for the other half of a small
product spin and slow down all others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch.nn import Linear
from torch.nn.functional import linear
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin

from harness_policy_server.attention import attend, unknown

log = logging.getLogger(__name__)
_T = TypeVar("_T")
_Made = TypeVar("_Made")

ROWS = 32
"""Rows of a pass."""
LANES = 2
"""Prompts or passes at once, each with a share of the threads, independent of other requests."""
SMALL = 32_000_000
"""Parameters of the largest model with two lanes. A larger one has one lane of all threads, so
that weights are read once."""
BLOCK = 16
"""Rows of a product with weights, and of sampling."""
TRIAL = 70
"""Tokens of the prompt with which it is tried whether rows are alike."""
ATTENTION = "harness_by_row"
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names of the number of experts in configurations."""


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
    """Compute attention of a prompt, or of one new token a row where the cache gives itself."""
    if asked := unknown(options):
        raise NotImplementedError(
            f"{type(module).__name__} asks for {asked}, which harness's policy server does not "
            "compute: serve this model with another server, and name it with --endpoint"
        )
    if isinstance(key, _Step):
        return key.attend(query, scaling, sliding_window), None
    return attend(query, key, value, scaling, sliding_window).transpose(1, 2), None


# No mask is registered with it: transformers then makes none.
AttentionInterface.register(ATTENTION, _attention)


@dataclass(frozen=True)
class Read:
    """Results of reading a prompt: the next token's logits, [1, vocabulary]; each layer's cache."""

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

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        self.keys, self.values = key_states, value_states
        return key_states, value_states


class _Seats:
    """A layer's keys and values, [seats, key heads, positions, width], in lazily taken memory."""

    keys: torch.Tensor
    values: torch.Tensor
    by_seat: list[tuple[torch.Tensor, torch.Tensor]]

    def __init__(self, seats: int, positions: int) -> None:
        self._shape = seats, positions
        self.by_seat = []

    def fill(self, seat: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Begin a seat with a prompt's."""
        heads, length, width = keys.shape
        if not self.by_seat:
            seats, positions = self._shape
            self.keys = torch.empty(seats, heads, positions, width)
            self.values = torch.empty(seats, heads, positions, width)
            self.by_seat = list(zip(self.keys.split(1), self.values.split(1), strict=True))
        self.keys[seat, :, :length], self.values[seat, :, :length] = keys, values

    def move(self, seat: int, to: int, length: int) -> None:
        """Let a request change its seat."""
        for whole in (self.keys, self.values):
            whole[to, :, :length] = whole[seat, :, :length]


@dataclass(frozen=True)
class _Some:
    """Requests of a pass in consecutive seats.

    Attributes:
        first: The first seat.
        lengths: Positions of each, the new token's included.
        seats: Each request's seat for its new token, [requests]; `positions` alike.
    """

    first: int
    lengths: Sequence[int]
    seats: torch.Tensor
    positions: torch.Tensor

    @property
    def blocks(self) -> int:
        """Blocks of rows with a request."""
        return -(-len(self.lengths) // BLOCK)


class _Step(_Layer):
    """A layer's cache in a pass: stores new keys and values, and attends to those of each seat."""

    def __init__(self, seats: _Seats, some: _Some) -> None:
        super().__init__()
        self._seats, self._some = seats, some

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        seats, positions = self._some.seats, self._some.positions
        # Idle rows come last and have no seat, so what is computed for them is dropped.
        self._seats.keys[seats, :, positions] = key_states[: len(seats), :, 0]
        self._seats.values[seats, :, positions] = value_states[: len(seats), :, 0]
        return self, self

    def attend(self, query: torch.Tensor, scale: float | None, window: int | None) -> torch.Tensor:
        """Attend within a pass's rows, [rows, heads, 1, width] -> [rows, 1, heads, width]."""
        rows, lengths = query.split(1), self._some.lengths
        seats = self._seats.by_seat[self._some.first : self._some.first + len(lengths)]
        made = []
        # One row at a time, each over its own length: its result must not depend on the others.
        with _one_thread():
            for row, (keys, values), length in zip(rows, seats, lengths, strict=False):
                own_keys, own_values = keys.narrow(2, 0, length), values.narrow(2, 0, length)
                made.append(attend(row, own_keys, own_values, scale, window))
        idle = map(torch.zeros_like, rows[len(made) :])
        return torch.cat([*made, *idle]).transpose(1, 2)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread for operations that are shorter than waking a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Passes:
    """A model's passes. Call them and `settle` in one thread, which owns OpenMP's threads.

    Args:
        model: A causal LM in evaluation mode, on the CPU. Its attention and its linear layers are
            replaced.
        seats: Requests that hold keys and values at once.
        positions: Positions of the longest request.
    """

    def __init__(self, model: Any, seats: int, positions: int) -> None:
        model.set_attn_implementation(ATTENTION)
        self.model = model
        mixture = any(getattr(model.config, name, None) for name in EXPERTS)
        self.rows = 1 if mixture else ROWS
        self._small = model.num_parameters() <= SMALL
        self._lanes: list[ThreadPoolExecutor] | None = None
        """The lanes other than the calling thread."""
        self._here = threading.local()
        """In each lane, `some`: the pass under way."""
        seats = max(seats, ROWS * LANES)
        positions = max(positions, TRIAL + 1)
        self._seats = [_Seats(seats, positions) for _ in range(model.config.num_hidden_layers)]
        for module in model.modules():
            if type(module) is Linear:
                module.forward = partial(self._linear, module)  # type: ignore[method-assign]

    def read(self, *prompts: Sequence[int]) -> list[Read]:
        """Read prompts, each alone, in each lane one at a time."""
        return self._in_lanes(self._read, prompts)

    def _read(self, prompt: Sequence[int]) -> Read:
        with torch.inference_mode():
            layers: list[Any] = [_Prompt() for _ in self._seats]
            ids = torch.tensor([prompt])
            output = self.model(
                input_ids=ids,
                past_key_values=Cache(layers=layers),
                use_cache=True,
                logits_to_keep=1,
            )
            # A prompt is a batch of one row, and a seat holds rows without that dimension.
            cached = []
            for layer in layers:
                cached.append((layer.keys[0], layer.values[0]))
            return Read(output.logits[:, -1], cached)

    def sit(self, seat: int, read: Read) -> None:
        """Begin a seat with a prompt."""
        for layer, (keys, values) in zip(self._seats, read.layers, strict=True):
            layer.fill(seat, keys, values)

    def move(self, seat: int, to: int, length: int) -> None:
        """Let a request of so many positions change its seat."""
        for layer in self._seats:
            layer.move(seat, to, length)

    def step(
        self, tokens: Sequence[int], positions: Sequence[int]
    ) -> list[tuple[int, torch.Tensor]]:
        """Return the logits after one more token of each request, from the first seat on.

        Args:
            tokens: The new token of each request.
            positions: The token's position in its sequence.

        Returns:
            For each pass its number of requests, and logits `[rows, vocabulary]` that begin with
            theirs.
        """
        requests = self._divided(len(tokens))
        passes = []
        first = 0
        for count in requests:
            end = first + count
            passes.append((first, tokens[first:end], positions[first:end]))
            first = end
        return list(zip(requests, self._in_lanes(self._pass, passes), strict=True))

    def _divided(self, requests: int) -> list[int]:
        """Return the number of requests in each pass; more than a block's go to all lanes."""
        passes = -(-requests // self.rows)
        if requests > BLOCK:
            passes = min(requests, -(-passes // self.lanes) * self.lanes)
        return [(requests + place) // passes for place in range(passes)]

    def _pass(self, asked: tuple[int, Sequence[int], Sequence[int]]) -> torch.Tensor:
        first, tokens, positions = asked
        # A pass has the same shape for any number of requests; results of idle rows are not used.
        idle = [0] * (self.rows - len(tokens))
        with torch.inference_mode():
            some = _Some(
                first,
                [position + 1 for position in positions],
                torch.arange(first, first + len(tokens)),
                torch.tensor(positions),
            )
            self._here.some = some
            found: torch.Tensor = self.model(
                input_ids=torch.tensor([*tokens, *idle])[:, None],
                position_ids=torch.tensor([*positions, *idle])[:, None],
                past_key_values=Cache(layers=[_Step(seats, some) for seats in self._seats]),
                use_cache=True,
            ).logits[:, -1]
        return found

    def settle(self) -> None:
        """Divide threads among lanes and make equal rows give equal results, before any request."""
        if self._lanes is not None:
            return
        self._lanes = []
        if self._small and (threads := torch.get_num_threads()) >= LANES:
            self._divide(threads // LANES, LANES - 1)
        if self.rows > 1 and not self._alike():
            log.info(
                "rows of a pass are not computed alike with %d threads here: one thread",
                torch.get_num_threads(),
            )
            self._divide(1, len(self._lanes))
            if not self._alike():
                log.info("nor with one thread: one row at a time")
                self.rows = 1

    def _divide(self, threads: int, others: int) -> None:
        """Give each lane, this thread too, so many threads."""
        for lane in self._lanes or ():
            lane.shutdown()
        initializer = torch.set_num_threads
        self._lanes = []
        for _ in range(others):
            lane = ThreadPoolExecutor(1, "lane", initializer, (threads,))
            lane.submit(int).result()  # a lane's setting also applies to threads that start later
            self._lanes.append(lane)
        torch.set_num_threads(threads)

    @property
    def lanes(self) -> int:
        """Number of threads that make passes, including the calling thread."""
        return 1 + len(self._lanes or ())

    def _in_lanes(self, make: Callable[[_T], _Made], given: Sequence[_T]) -> list[_Made]:
        """Apply a function to each item, in all lanes at once, and return the results."""
        # Item i is in lane i % lanes, where the calling thread is lane 0.
        others = []
        for place, lane in enumerate(self._lanes or (), 1):
            others.append(lane.submit(_each, make, given[place :: self.lanes]))
        try:
            made = [_each(make, given[:: self.lanes])]
        finally:
            wait(others)
        for other in others:
            made.append(other.result())
        in_order = []
        for place in range(len(given)):
            in_order.append(made[place % self.lanes][place // self.lanes])
        return in_order

    def _alike(self) -> bool:
        size = self.model.config.vocab_size
        prompt = [(7 * place + 1) % size for place in range(TRIAL)]
        (read,) = self.read(prompt)
        rows = self.rows * self.lanes
        for seat in range(rows):
            self.sit(seat, read)
        by_pass = []
        for _, logits_of_pass in self.step(prompt[:1] * rows, [TRIAL] * rows):
            by_pass.append(logits_of_pass)
        logits = torch.cat(by_pass)
        return bool(torch.equal(logits, logits[:1].expand_as(logits)))

    def _linear(self, module: Linear, given: torch.Tensor) -> torch.Tensor:
        """Compute a linear layer: at once for a prompt, in blocks for a step's rows."""
        if len(given) == 1:
            return linear(given, module.weight, module.bias)
        blocks = given.split(BLOCK)[: self._here.some.blocks]
        found = [linear(block, module.weight, module.bias) for block in blocks]
        if idle := len(given) - len(blocks) * BLOCK:
            found.append(given.new_zeros(idle, *given.shape[1:-1], module.out_features))
        return torch.cat(found)


def _each(make: Callable[[_T], _Made], given: Sequence[_T]) -> list[_Made]:
    return [make(one) for one in given]
