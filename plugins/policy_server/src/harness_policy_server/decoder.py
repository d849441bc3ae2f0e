"""Continuous batching for a transformers causal LM on a CPU.

Requests come and go between decode steps: each has a seat in a preallocated key/value cache, so a
new request never waits for the longest running one and nothing is copied when one leaves. For
models of a few million parameters this is several times faster than vLLM's CPU build, starts at
once, and needs nothing beyond transformers. The answer to a request does not depend on the other
requests (`passes.py`).
"""

from __future__ import annotations

import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch

from harness_policy_server.passes import BLOCK, Passes, Read

KEPT = 16384
"""Tokens of prompts that were read last and need not be read again while the weights stay."""


@dataclass(eq=False)
class Generation:
    """One request and its result.

    Attributes:
        prompt_ids: Token ids of the whole prompt.
        temperature: 0 decodes greedily.
        seed: Seeds this request's own random stream; None makes one up.
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
    _stream: random.Random | None = None

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, at a temperature of about 0."""
        return self.temperature < 1e-5

    def random(self) -> float:
        """Return the next number of this request's own stream, from 0 to below 1."""
        self._stream = self._stream or random.Random(self.seed)
        return self._stream.random()

    @property
    def length(self) -> int:
        """Tokens of prompt and response so far."""
        return len(self.prompt_ids) + len(self.token_ids)


class Decoder:
    """Runs a model for any number of requests at once, in one thread of its own.

    Args:
        model: A causal LM in evaluation mode, on the CPU.
        slots: Requests decoded at once; further ones wait in order.
        max_length: Prompt and response together, in tokens.
        stop_ids: Token ids that end a response.
    """

    def __init__(self, model: Any, slots: int, max_length: int, stop_ids: set[int]) -> None:
        self.model = model
        self.max_length = max_length
        self.stop_ids = stop_ids
        self._passes = Passes(model, slots, max_length)
        self._slots = slots
        self._running: list[Generation] = []
        """In order of their seats, of which none is left empty."""
        self._waiting: list[Generation] = []
        self._read: OrderedDict[tuple[int, ...], Read] = OrderedDict()
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
        """End the thread; requests in progress get an error."""
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
                    failed = [*self._waiting, *self._running]
                    self._waiting, self._running = [], []
                    for generation in failed:
                        self._finish(generation, error=RuntimeError("the decoder was stopped"))
                    return
                free = self._slots - len(self._running)
                admitted, self._waiting = self._waiting[:free], self._waiting[free:]
            try:
                with self._model_lock, torch.inference_mode():
                    self._passes.settle()
                    if admitted:
                        self._admit(admitted)
                    if self._running:
                        self._decode()
            except (
                BaseException
            ) as error:  # pass the error to the callers instead of ending the thread silently
                failed = list(dict.fromkeys([*admitted, *self._running]))
                self._running = []
                for generation in failed:
                    self._finish(generation, error=error)

    def _admit(self, admitted: list[Generation]) -> None:
        """Read the uncached prompts, each once, and sample the first token of each request."""
        # Rollouts of a task bring the same prompt; a dictionary holds it once, in order.
        new: dict[tuple[int, ...], None] = {}
        for generation in admitted:
            prompt = tuple(generation.prompt_ids)
            if prompt not in self._read:
                new[prompt] = None
        self._read.update(zip(new, self._passes.read(*new), strict=True))
        for generation in admitted:
            prompt = tuple(generation.prompt_ids)
            self._read.move_to_end(prompt)
            self._passes.sit(len(self._running), self._read[prompt])
            self._running.append(generation)
            self._sample(self._read[prompt].logits, [generation])
        # Rollouts of a task share a prompt and arrive close together, so keep the latest prompts.
        while sum(map(len, self._read)) > KEPT:
            self._read.popitem(last=False)
        self._dismiss()

    def _decode(self) -> None:
        """Sample one token for every running request."""
        last = [generation.token_ids[-1] for generation in self._running]
        positions = [generation.length - 1 for generation in self._running]
        waiting = iter(self._running)
        for requests, logits in self._passes.step(last, positions):
            self._sample(logits, list(islice(waiting, requests)))
        self._dismiss()

    def _dismiss(self) -> None:
        """Remove finished requests, and move the last ones to their seats."""
        # From the last seat down, so that a request which moves to a free seat was checked before.
        for seat in reversed(range(len(self._running))):
            generation = self._running[seat]
            if generation.finish_reason:
                last = self._running.pop()
                if last is not generation:
                    self._running[seat] = last
                    self._passes.move(len(self._running), seat, last.length)
                self._finish(generation)

    def _sample(self, logits: torch.Tensor, generations: Sequence[Generation]) -> None:
        """Sample the next token of requests from the first rows of `logits`, block by block."""
        for first in range(0, len(generations), BLOCK):
            self._draw(logits[first : first + BLOCK], generations[first : first + BLOCK])

    def _draw(self, logits: torch.Tensor, generations: Sequence[Generation]) -> None:
        # Rows without a request are sampled too: the shape must not depend on other requests.
        idle = len(logits) - len(generations)
        heat = torch.tensor(
            [*(1.0 if g.greedy else g.temperature for g in generations), *[1.0] * idle]
        )
        logprobs = (logits.float() / heat[:, None]).log_softmax(-1)
        for index, generation in enumerate(generations):
            if generation.top_p < 1.0 and not generation.greedy:
                logprobs[index] = _nucleus(logprobs[index], generation.top_p)
        # One number a token from one random stream a request, so that the sampled tokens do not
        # depend on other requests.
        drawn = torch.tensor(
            [*(0.0 if g.greedy else g.random() for g in generations), *[0.0] * idle],
            dtype=torch.float64,
        )
        sums = logprobs.double().exp().cumsum(-1)
        sampled = torch.searchsorted(sums, drawn[:, None] * sums[:, -1:], right=True)[:, 0]
        greedy = torch.tensor([*(g.greedy for g in generations), *[True] * idle])
        chosen = torch.where(greedy, logprobs.argmax(-1), sampled)
        picked = logprobs.gather(-1, chosen[:, None])[:, 0].tolist()
        self.tokens += len(generations)
        for generation, token, logprob in zip(generations, chosen.tolist(), picked, strict=False):
            generation.token_ids.append(token)
            generation.logprobs.append(logprob)
            full = (
                len(generation.token_ids) >= generation.max_tokens
                or generation.length >= self.max_length
            )
            if token in self.stop_ids:
                generation.finish_reason = "stop"
            elif full or generation.cancelled:
                generation.finish_reason = "length"

    @staticmethod
    def _finish(generation: Generation, error: BaseException | None = None) -> None:
        generation.error = error
        generation.done(generation)


def _nucleus(logprobs: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the smallest set of tokens with a probability of `top_p` in all; `[vocabulary]`."""
    order = logprobs.argsort(descending=True)
    cumulative = logprobs[order].exp().cumsum(-1)
    dropped = order[torch.cat([torch.zeros(1, dtype=torch.bool), cumulative[:-1] >= top_p])]
    kept = logprobs.clone()
    kept[dropped] = float("-inf")
    return kept.log_softmax(-1)
