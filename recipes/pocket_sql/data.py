"""Examples as token ids: blocks made by worker processes, groups of blocks, and padded batches."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from recipes.pocket_sql.samples import examples

if TYPE_CHECKING:
    import torch

WORLDS_PER_BLOCK = 25
HASHED_BLOCKS = 64
"""How many blocks enter the hash of the training data."""

HELD_OUT = 10**9
"""Random databases from this index on are never trained on."""


class Conversation(Protocol):
    """One row to learn from."""

    def pieces(self) -> list[tuple[str, bool]]:
        """Its text in pieces that the tokenizer may take one by one, and whether each is learnt. The first is the
        system message, the same in many."""


Source = Callable[[int], Iterable[Conversation]]
"""Makes the conversations of one index, always the same; must be picklable."""

_encoder: Any = None


@dataclass(frozen=True, slots=True)
class Block:
    """Conversations as ids: `tokens` end to end, a byte of `learnt` for each, and the length of each conversation."""

    tokens: bytes
    learnt: bytes
    lengths: list[int]


def text_of(conversation: Conversation) -> str:
    return "".join(text for text, _ in conversation.pieces())


def tokenizer_texts(seed: int, worlds: int) -> Iterator[str]:
    """What the tokenizer is trained on: the first conversations of many random databases."""
    for index in range(worlds):
        for number, example in enumerate(examples(seed, index)):
            if number == 3:
                break
            yield text_of(example)


def drafts_digest(seed: int, habits: bool, worlds: int = 300) -> str:
    """A hash of the first drafts: their prompts and replies, which no version of SQLite changes."""
    digest = hashlib.sha256()
    for index in range(worlds):
        for example in examples(seed, index, habits):
            if example.prompt.role == "write_query":
                digest.update(text_of(example).encode())
    return digest.hexdigest()


def start_worker(tokenizer_file: str) -> None:
    """Load the tokenizer once a process."""
    global _encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer

    _encoder = Tokenizer.from_file(tokenizer_file)


@cache
def _head(system: str) -> list[int]:
    ids: list[int] = _encoder.encode(system).ids
    return ids


def make_block(source: Source, number: int) -> Block:
    """Block number `number` of a source."""
    tokens, learnt, lengths = array("H"), bytearray(), []
    found = [
        conversation.pieces()
        for index in range(number * WORLDS_PER_BLOCK, (number + 1) * WORLDS_PER_BLOCK)
        for conversation in source(index)
    ]
    encoded = iter(_encoder.encode_batch([text for _, *pieces in found for text, _ in pieces]))
    for (system, _), *pieces in found:
        begun = len(tokens)
        tokens.extend(_head(system))
        learnt.extend(bytes(len(tokens) - begun))
        for _, trained in pieces:
            ids = next(encoded).ids
            tokens.extend(ids)
            learnt.extend(bytes([trained]) * len(ids))
        lengths.append(len(tokens) - begun)
    return Block(tokens.tobytes(), bytes(learnt), lengths)


class Stream:
    """Blocks in a fixed order from worker processes, gathered into groups."""

    def __init__(self, source: Source, tokenizer_file: str, workers: int, blocks_per_group: int) -> None:
        self.digest = hashlib.sha256()
        self.blocks = 0
        self._per_group = blocks_per_group
        context = multiprocessing.get_context("spawn")
        self._pool = context.Pool(workers, start_worker, (tokenizer_file,))
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
        self._pool.terminate()
        self._pool.join()


@dataclass(frozen=True, slots=True)
class Group:
    """Some ten thousand conversations, to be sorted by length and cut into batches."""

    tokens: torch.Tensor
    learnt: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor

    @classmethod
    def of(cls, blocks: list[Block]) -> Group:
        import torch

        tokens = torch.frombuffer(bytearray(b"".join(b.tokens for b in blocks)), dtype=torch.uint16)
        lengths = torch.tensor([n for b in blocks for n in b.lengths])
        learnt = torch.frombuffer(bytearray(b"".join(b.learnt for b in blocks)), dtype=torch.bool)
        starts = torch.cumsum(lengths, 0) - lengths
        return cls(tokens.to(torch.int32), learnt, starts, lengths)

    def batches(self, rng: Random, budget: int, device: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Batches of about `budget` tokens: ids `[rows, tokens]`, padded right with 0, and targets, -100 outside
        of replies."""
        import torch

        order = torch.argsort(self.lengths)
        cuts, first = [], 0
        ordered = self.lengths[order].tolist()
        while first < len(ordered):
            last = first
            while last < len(ordered) and (last + 1 - first) * _width(ordered[last]) <= budget:
                last += 1
            last = max(last, first + 1)
            cuts.append((first, last))
            first = last
        rng.shuffle(cuts)
        tokens, learnt = self.tokens.to(device), self.learnt.to(device)
        for first, last in cuts:
            rows = order[first:last]
            width = _width(ordered[last - 1])
            place = torch.arange(width, device=device)
            length = self.lengths[rows].to(device)[:, None]
            index = (self.starts[rows].to(device)[:, None] + place).clamp(max=len(tokens) - 1)
            inside = place < length
            ids = tokens[index].long().masked_fill(~inside, 0)
            targets = ids.masked_fill(~inside | ~learnt[index], -100)
            yield ids, targets


def _width(length: int) -> int:
    """Lengths are rounded up, so that few shapes occur."""
    return (length + 15) // 16 * 16
