"""Puzzles with what should be said of them: worked out step by step, or answered at once from a guess.

Nothing is played: the words are the program's own. A test sees to it that they are, byte for byte, what an agent asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from harness import Problem
from harness_reasoning_gym.puzzles import puzzles
from harness_reasoning_gym.tasks import FORM, ReasoningGymTasks
from harness_sql.tool_loop.prompts import WITHOUT_TOOLS
from recipes.medical.samples import Dialogue

DATASETS = ("spell_backward", "letter_counting")
SHARES = (2, 1)
"""Puzzles of each in an index: those of the second are longer."""
FIRST = 1 << 28
"""Puzzle n of a task set is made from its seed plus n, which stays far below this."""
PER_SEED = 1 << 26
SHORT = {"spell_backward": 6, "letter_counting": 7}
"""Letters of a word, words of a text: longer ones invite a guess."""
HASTY = {True: 0.3, False: 0.7}
"""Share of puzzles that are answered at once, of short ones and of long ones."""
LUCKY = 0.2
"""Share of guesses that are right."""
WORKED = 9_000
"""Indices before any puzzle is answered at once: of a guess there is nothing to learn."""


def spelt(word: str) -> str:
    """The letters numbered, then read from the last."""
    numbered = [f"{number}{letter}" for number, letter in enumerate(word, 1)]
    return f"{''.join(numbered)}\n{''.join(reversed(numbered))}"


def counted(text: str, letter: str) -> str:
    """The text copied, with the count so far behind every one of these letters."""
    found, count = "", 0
    for one in text:
        found += one
        if one.lower() == letter:
            count += 1
            found += str(count)
    return found


def guessed(dataset: str, answer: str, rng: Random) -> str:
    """A wrong answer of someone in a hurry: a letter is lost, or the count is off."""
    if dataset == "spell_backward":
        at = rng.randrange((len(answer) + 1) // 2)
        return answer[:at] + answer[at + 1 :]
    right = int(answer)
    return str(rng.choice([n for n in range(right - 2, right + 3) if n > 0 and n != right]))


def said(dataset: str, entry: Mapping[str, Any], hasty: float, rng: Random) -> str:
    """A reply to a puzzle.

    Args:
        hasty: Multiplies the share of puzzles that are answered at once; 0 works all of them out.
    """
    told, answer = entry["metadata"], str(entry["answer"])
    size = told["word_len"] if dataset == "spell_backward" else told["span_length"]
    if rng.random() < hasty * HASTY[size <= SHORT[dataset]]:
        return (
            f"<answer>{answer if rng.random() < LUCKY else guessed(dataset, answer, rng)}</answer>"
        )
    if dataset == "spell_backward":
        work = spelt(told["word"])
    else:
        work = counted(" ".join(told["span"]), told["target_letter"])
    return f"{work}\n<answer>{answer}</answer>"


def asked(question: str) -> list[dict[str, str]]:
    """The messages of an agent's only request."""
    return WITHOUT_TOOLS.messages(Problem("", question, {"form": FORM}))


@cache
def kept(dataset: str) -> frozenset[str]:
    """The questions that validation asks, which are not learnt."""
    return frozenset(task.question for task in ReasoningGymTasks(dataset).load("val"))


@dataclass(frozen=True, slots=True)
class PuzzleExamples:
    """Conversations of one seed, as a source of training data.

    Attributes:
        hasty: As `said` takes it.
    """

    seed: int
    hasty: float

    def __call__(self, index: int) -> Iterator[Dialogue]:
        rng = Random(f"pocket_puzzles/{self.seed}/{index}")
        for dataset, many in zip(DATASETS, SHARES, strict=True):
            made = puzzles(dataset, 0, "{}", FIRST + self.seed * PER_SEED, PER_SEED)
            for number in range(index * many, (index + 1) * many):
                entry = made[number]
                reply = said(dataset, entry, self.hasty if index >= WORKED else 0.0, rng)
                if entry["question"] not in kept(dataset):
                    yield Dialogue(
                        (), [*asked(entry["question"]), {"role": "assistant", "content": reply}]
                    )
