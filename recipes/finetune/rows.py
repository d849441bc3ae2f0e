"""Conversations as token ids: blocks made by worker processes, groups of blocks, and batches of rows end to end."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

INDICES_PER_BLOCK = 25
HASHED_BLOCKS = 64
"""How many blocks enter the hash of the training data."""


class Conversation(Protocol):
    """One row to learn from."""

    def pieces(self) -> list[tuple[str, bool]]:
        """Its text in pieces that the tokenizer may take one by one, and whether each is learnt. The first is the
        same in many, or empty."""


Source = Callable[[int], Iterable[Conversation]]
"""Makes the conversations of one index, always the same; must be picklable."""

_encoder: Any = None


@dataclass(frozen=True, slots=True)
class Block:
    """Conversations as ids: `tokens` end to end, a byte of `learnt` for each, and the length of each conversation.

    A token has two bytes, or four where the vocabulary is larger than that.
    """

    tokens: bytes
    learnt: bytes
    lengths: list[int]


def text_of(conversation: Conversation) -> str:
    """The whole text of a row."""
    return "".join(text for text, _ in conversation.pieces())


def start_worker(tokenizer_file: str) -> None:
    """Load the tokenizer once a process."""
    global _encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer

    _encoder = Tokenizer.from_file(tokenizer_file)
    _head.cache_clear()


def _in_pool(tokenizer_file: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that began it
    start_worker(tokenizer_file)


@cache
def _head(text: str) -> list[int]:
    ids: list[int] = _encoder.encode(text, add_special_tokens=False).ids
    return ids


def make_block(source: Source, number: int) -> Block:
    """Block number `number` of a source."""
    tokens = array("H" if _encoder.get_vocab_size() <= 1 << 16 else "I")
    learnt, lengths = bytearray(), []
    found = [
        conversation.pieces()
        for index in range(number * INDICES_PER_BLOCK, (number + 1) * INDICES_PER_BLOCK)
        for conversation in source(index)
    ]
    texts = [text for _, *pieces in found for text, _ in pieces]
    encoded = iter(_encoder.encode_batch(texts, add_special_tokens=False))
    for (head, _), *pieces in found:
        begun = len(tokens)
        tokens.extend(_head(head))
        learnt.extend(bytes(len(tokens) - begun))
        for _, trained in pieces:
            ids = next(encoded).ids
            tokens.extend(ids)
            learnt.extend(bytes([trained]) * len(ids))
        lengths.append(len(tokens) - begun)
    return Block(tokens.tobytes(), bytes(learnt), lengths)


class Stream:
    """Blocks in a fixed order from worker processes, gathered into groups."""

    def __init__(
        self, source: Source, tokenizer_file: str, workers: int, blocks_per_group: int
    ) -> None:
        self.digest = hashlib.sha256()
        self.blocks = 0
        self._per_group = blocks_per_group
        context = multiprocessing.get_context("spawn")
        self._pool = context.Pool(workers, _in_pool, (tokenizer_file,))
        self._source, self._next = source, 0
        self._ahead = [self._submit() for _ in range(max(2 * workers, 3 * blocks_per_group))]

    def _submit(self) -> Any:
        job = (self._source, self._next)
        self._next += 1
        return self._pool.apply_async(make_block, job)

    def group(self) -> Group:
        """The next group of fresh examples; waits for the workers."""
        blocks = []
        for _ in range(self._per_group):
            block = self._ahead.pop(0).get()
            self._ahead.append(self._submit())
            if self.blocks < HASHED_BLOCKS:
                self.digest.update(block.tokens)
            self.blocks += 1
            blocks.append(block)
        return Group.of(blocks)

    def close(self) -> None:
        """End the workers."""
        self._pool.terminate()
        self._pool.join()


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows end to end.

    Attributes:
        ids: `[1, tokens]`; `positions` alike, from 0 in every row.
        targets: The next token where it is learnt, else -100, `[tokens]`.
        ends: Where each row begins, and the last one ends, on the CPU, `[rows + 1]`.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor
    ends: torch.Tensor


@dataclass(frozen=True, slots=True)
class Group:
    """Some ten thousand conversations, to be shuffled and cut into batches."""

    tokens: torch.Tensor
    learnt: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor

    @classmethod
    def of(cls, blocks: list[Block]) -> Group:
        """The rows of some blocks."""
        import torch

        lengths = torch.tensor([n for b in blocks for n in b.lengths])
        raw = bytearray(b"".join(b.tokens for b in blocks))
        tokens = torch.frombuffer(
            raw, dtype=torch.uint16 if len(raw) == 2 * int(lengths.sum()) else torch.uint32
        )
        learnt = torch.frombuffer(bytearray(b"".join(b.learnt for b in blocks)), dtype=torch.bool)
        starts = torch.cumsum(lengths, 0) - lengths
        return cls(tokens.to(torch.int64), learnt, starts, lengths)

    def batches(self, rng: Random, budget: int, device: str) -> Iterator[Batch]:
        """Batches of at most `budget` tokens, or one row that is longer; every row once, in an order of `rng`."""
        order = list(range(len(self.lengths)))
        rng.shuffle(order)
        rows: list[int] = []
        held = 0
        for row, length in ((row, int(self.lengths[row])) for row in order):
            if rows and held + length > budget:
                yield self._batch(rows, device)
                rows, held = [], 0
            rows.append(row)
            held += length
        if rows:
            yield self._batch(rows, device)

    def _batch(self, rows: list[int], device: str) -> Batch:
        import torch

        lengths = self.lengths[rows]
        ends = torch.nn.functional.pad(torch.cumsum(lengths, 0), (1, 0))
        positions = torch.arange(int(ends[-1])) - torch.repeat_interleave(ends[:-1], lengths)
        index = positions + torch.repeat_interleave(self.starts[rows], lengths)
        ids = self.tokens[index]
        # A row's first token follows from nothing: the last position of the row before has no target.
        wanted = ids.masked_fill(~self.learnt[index] | (positions == 0), -100).roll(-1)
        return Batch(ids[None].to(device), positions[None].to(device), wanted.to(device), ends)
