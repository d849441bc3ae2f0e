"""Continuous batching for a transformers causal LM on a CPU.

Requests come and go between decode steps: each has a slot in a preallocated key/value cache, so a new
request never waits for the longest running one and nothing is re-copied when one leaves. For models of a
few million parameters this is several times faster than vLLM's CPU build, starts at once, and needs
nothing beyond transformers.

What a request is answered must not depend on what else is in flight, to the last bit: sums of another order give other
last bits, once in a million tokens another token, and then another training. So prompts are read together only where
they are padded to the same length (and kept, for whoever asks the same), and a decode step has a multiple of `ROWS`
rows and of `GROW` positions: the matrix products of such shapes are the same for a row whatever the number of others
(a test compares; with 1, 2, 3, 5 ... rows BLAS libraries take other kernels).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

GROW = 64
"""The cache's length, and what a step sees of it, grow in steps of this many tokens."""
ROWS = 16
"""A decode step has a multiple of this many rows; those without a request idle along."""
KEPT = 16384
"""Tokens of prompts that were read last and need not be read again while the weights stay."""
ATTENTION = "harness_grouped"


def _grouped_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one new token a row without repeating the keys of grouped heads; longer queries go to SDPA."""
    batch, heads, length, width = query.shape
    if length > 1 or attention_mask is None:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        return output, None
    groups = query.view(batch, key.shape[1], heads // key.shape[1], width)
    scores = (groups @ key.transpose(-1, -2)) * (scaling if scaling is not None else width**-0.5) + attention_mask
    return (scores.softmax(-1) @ value).view(batch, 1, heads, width), None


AttentionInterface.register(ATTENTION, _grouped_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


@dataclass(eq=False)
class Generation:
    """One request and what became of it.

    Attributes:
        prompt_ids: Token ids of the whole prompt.
        temperature: 0 decodes greedily.
        seed: Seeds this request's own random stream; None draws from the engine's.
        token_ids: Sampled ids so far, the stop token included.
        logprobs: Log-probability of each under the sampling distribution (after temperature).
        finish_reason: `stop` at a stop token, `length` at `max_tokens`; None while running.
    """

    prompt_ids: Sequence[int]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    done: Callable[[Generation], None] = lambda generation: None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    error: BaseException | None = None
    cancelled: bool = False
    generator: torch.Generator | None = None


@dataclass(frozen=True)
class _Read:
    """What reading a prompt gave: the logits of its next token, [vocabulary], and each layer's keys and values."""

    logits: torch.Tensor
    layers: list[tuple[torch.Tensor, torch.Tensor]]


class _SlotLayer(CacheLayerMixin):
    """Keys and values of one layer: [slots, kv heads, length, head dim], each slot filled from index 0."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.slots = slots
        self.positions = torch.zeros(0, dtype=torch.long)
        """Where each of the first slots writes its next token, [slots in use]."""
        self.span = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        _, heads, _, width = key_states.shape
        self.keys = key_states.new_zeros(self.slots, heads, GROW, width)
        self.values = torch.zeros_like(self.keys)
        self.is_initialized = True

    def fill(self, slots: list[int], keys: torch.Tensor, values: torch.Tensor) -> None:
        """Begin these slots with a prompt's keys and values, [kv heads, length, head dim]."""
        if not self.is_initialized:
            self.lazy_initialization(keys[None], values[None])
        length = keys.shape[1]
        self.reserve(length + GROW)
        assert self.keys is not None and self.values is not None
        self.keys[slots, :, :length] = keys
        self.values[slots, :, :length] = values

    def reserve(self, length: int) -> None:
        assert self.keys is not None and self.values is not None
        have = self.keys.shape[2]
        if length > have:
            more = -(-(length - have) // GROW) * GROW
            self.keys = torch.nn.functional.pad(self.keys, (0, 0, 0, more))
            self.values = torch.nn.functional.pad(self.values, (0, 0, 0, more))

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.keys is not None and self.values is not None
        used = len(self.positions)
        rows = torch.arange(used)
        self.keys[rows, :, self.positions] = key_states[:, :, 0]
        self.values[rows, :, self.positions] = value_states[:, :, 0]
        return self.keys[:used, :, : self.span], self.values[:used, :, : self.span]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.span, 0

    def get_seq_length(self) -> int:
        return max(self.span - 1, 0)

    def get_max_cache_shape(self) -> int:
        return -1


class Decoder:
    """Runs a model for any number of requests at once, in one thread of its own.

    Args:
        model: A causal LM in evaluation mode, on the CPU.
        slots: Requests decoded at once; further ones wait in order.
        max_length: Prompt and response together, in tokens.
        stop_ids: Token ids that end a response.
    """

    def __init__(self, model: Any, slots: int, max_length: int, stop_ids: set[int]) -> None:
        model.set_attn_implementation(ATTENTION)
        slots = -(-slots // ROWS) * ROWS
        self.model = model
        self.max_length = max_length
        self.stop_ids = stop_ids
        self._layers = [_SlotLayer(slots) for _ in range(model.config.num_hidden_layers)]
        self._cache = Cache(layers=self._layers)
        self._free = list(range(slots))
        self._running: dict[int, Generation] = {}
        self._waiting: list[Generation] = []
        self._read: OrderedDict[tuple[int, ...], _Read] = OrderedDict()
        self._wake = threading.Condition()
        self._model_lock = threading.Lock()
        self._stopped = False
        self.tokens = 0
        self._thread = threading.Thread(target=self._loop, name="decoder", daemon=True)
        self._thread.start()

    def submit(self, generation: Generation) -> None:
        """Queue a request; its `done` is called from the decoder's thread."""
        with self._wake:
            self._waiting.append(generation)
            self._wake.notify()

    def stop(self) -> None:
        """End the thread; what is under way gets an error."""
        with self._wake:
            self._stopped = True
            self._wake.notify()
        self._thread.join(timeout=30)

    def load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        """Put new weights in place between two decode steps; tied weights follow.

        Raises:
            KeyError: A name that the model does not have.
        """
        with self._model_lock, torch.no_grad():
            own = self.model.state_dict()
            for name, tensor in weights.items():
                own[name].copy_(tensor)
            self.model.tie_weights()
            self._read.clear()

    def _loop(self) -> None:
        while True:
            with self._wake:
                while not (self._stopped or self._waiting or self._running):
                    self._wake.wait()
                if self._stopped:
                    failed = [*self._waiting, *self._running.values()]
                    self._waiting, self._running = [], {}
                    for generation in failed:
                        self._finish(generation, error=RuntimeError("the decoder was stopped"))
                    return
                admitted: list[Generation] = []
                while self._free[len(admitted) :] and self._waiting:
                    admitted.append(self._waiting.pop(0))
            try:
                with self._model_lock, torch.inference_mode():
                    if admitted:
                        self._admit(admitted)
                    if self._running:
                        self._decode()
            except BaseException as error:  # a fault here must reach the callers, not end the thread silently
                for generation in {*admitted, *self._running.values()}:
                    self._finish(generation, error=error)
                self._free = list(range(self._layers[0].slots))
                self._running.clear()

    def _admit(self, admitted: list[Generation]) -> None:
        """Read the prompts that are not at hand, each once, and sample the first token of each request."""
        groups: dict[tuple[int, ...], list[Generation]] = {}
        for generation in admitted:
            groups.setdefault(tuple(generation.prompt_ids), []).append(generation)
        by_width: dict[int, list[tuple[int, ...]]] = {}
        for prompt in groups:
            if prompt in self._read:
                self._read.move_to_end(prompt)
            else:
                by_width.setdefault(-(-len(prompt) // GROW) * GROW, []).append(prompt)
        for width, prompts in by_width.items():
            self._read.update(zip(prompts, self._reading(width, prompts), strict=True))
        rows, logits, generations = [], [], []
        for prompt, group in groups.items():
            read = self._read[prompt]
            slots = [heappop(self._free) for _ in group]  # the lowest, so that the slots in use stay together
            self._running.update(zip(slots, group, strict=True))
            for layer, (keys, values) in zip(self._layers, read.layers, strict=True):
                layer.fill(slots, keys, values)
            rows += slots
            logits += [read.logits] * len(group)
            generations += group
        self._sample(torch.stack(logits), rows, generations)
        while sum(map(len, self._read)) > KEPT:
            self._read.popitem(last=False)

    def _reading(self, width: int, prompts: list[tuple[int, ...]]) -> list[_Read]:
        """Prompts of one padded length."""
        ids = torch.tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in prompts])
        # Padding is on the right, where a causal model's earlier positions cannot see it.
        cache = DynamicCache(config=self.model.config)
        last = torch.tensor([len(prompt) - 1 for prompt in prompts])
        hidden = self.model.model(input_ids=ids, past_key_values=cache, use_cache=True).last_hidden_state
        few = torch.nn.functional.pad(hidden[torch.arange(len(prompts)), last], (0, 0, 0, -len(prompts) % ROWS))
        logits = self.model.lm_head(few)
        return [
            _Read(
                logits[index].clone(),
                [
                    (layer.keys[index, :, :size].clone(), layer.values[index, :, :size].clone())
                    for layer in cache.layers
                ],
            )
            for index, size in enumerate(map(len, prompts))
        ]

    def _decode(self) -> None:
        """One token for every running request."""
        used = -(-(max(self._running) + 1) // ROWS) * ROWS  # slots up to here are a view of the cache
        positions = torch.zeros(used, dtype=torch.long)
        tokens = torch.zeros(used, 1, dtype=torch.long)
        for row, generation in self._running.items():
            positions[row] = len(generation.prompt_ids) + len(generation.token_ids) - 1
            tokens[row] = generation.token_ids[-1]
        span = -(-(int(positions.max()) + 1) // GROW) * GROW
        for layer in self._layers:
            layer.reserve(span)
            layer.positions, layer.span = positions, span
        hidden = torch.arange(span)[None, :] > positions[:, None]
        mask = torch.zeros(used, 1, 1, span, dtype=self.model.dtype)
        mask.masked_fill_(hidden[:, None, None, :], torch.finfo(self.model.dtype).min)
        logits = self.model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions[:, None],
            past_key_values=self._cache,
            use_cache=True,
        ).logits[:, -1]
        rows = list(self._running)
        self._sample(logits[rows], rows, list(self._running.values()))

    def _sample(self, logits: torch.Tensor, rows: list[int], generations: list[Generation]) -> None:
        temperatures = torch.tensor([g.temperature for g in generations])[:, None]
        greedy = temperatures[:, 0] < 1e-5
        logprobs = (logits.float() / torch.where(temperatures < 1e-5, 1.0, temperatures)).log_softmax(-1)
        for index, generation in enumerate(generations):
            if generation.top_p < 1.0 and not greedy[index]:
                logprobs[index] = _nucleus(logprobs[index], generation.top_p)
        # Gumbel-max with one random stream a request: what is sampled does not depend on who else runs.
        noise = torch.stack([self._noise(g, logits.shape[-1]) for g in generations])
        chosen = torch.where(greedy, logprobs.argmax(-1), (logprobs - noise.log()).argmax(-1))
        picked = logprobs.gather(-1, chosen[:, None])[:, 0].tolist()
        self.tokens += len(generations)
        for row, generation, token, logprob in zip(rows, generations, chosen.tolist(), picked, strict=True):
            generation.token_ids.append(token)
            generation.logprobs.append(logprob)
            full = len(generation.prompt_ids) + len(generation.token_ids) >= self.max_length
            if token in self.stop_ids:
                generation.finish_reason = "stop"
            elif len(generation.token_ids) >= generation.max_tokens or full or generation.cancelled:
                generation.finish_reason = "length"
            if generation.finish_reason:
                del self._running[row]
                heappush(self._free, row)
                self._finish(generation)

    @staticmethod
    def _noise(generation: Generation, size: int) -> torch.Tensor:
        if generation.generator is None:
            generation.generator = torch.Generator()
            generation.generator.manual_seed(
                generation.seed if generation.seed is not None else int(torch.randint(2**62, ()))
            )
        return torch.empty(size).exponential_(generator=generation.generator)

    @staticmethod
    def _finish(generation: Generation, error: BaseException | None = None) -> None:
        generation.error = error
        generation.done(generation)


def _nucleus(logprobs: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the smallest set of tokens whose probability reaches `top_p`, renormalised. [vocabulary]"""
    order = logprobs.argsort(descending=True)
    cumulative = logprobs[order].exp().cumsum(-1)
    dropped = order[torch.cat([torch.zeros(1, dtype=torch.bool), cumulative[:-1] >= top_p])]
    kept = logprobs.clone()
    kept[dropped] = float("-inf")
    return kept.log_softmax(-1)
