"""The course `pocket_puzzles`: two data sets of reasoning_gym; from nothing it makes `pocket-puzzles`.

Most puzzles, above all long ones, are answered at once from a guess that is seldom right, so that reinforcement has
something to teach: to work them out. `--no-habits` works all of them out. Needs no network, no GPU and no framework.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness_reasoning_gym.puzzles import extract_answer, puzzles
from harness_reasoning_gym.tasks import FORM, VAL_SEED
from harness_sql.tool_loop.prompts import SYSTEM_WITHOUT_TOOLS, WITHOUT_TOOLS
from recipes.finetune.course import PRETRAINING, Course, Small
from recipes.finetune.policy import Policy, share, spread
from recipes.medical.samples import CHAT_TEMPLATE, Dialogue
from recipes.pocket_puzzles.samples import DATASETS, PuzzleExamples, asked
from recipes.pocket_sql.tokenizer import END, train

ARCHITECTURE = (128, 256, 4, 4, 2)
"""0.6 million parameters, 1.3 MB."""
DEFAULTS = PRETRAINING | {
    "name": "pocket-puzzles",
    "learning_rate": 3e-3,
    "minutes": 20.0,
    "batch_tokens": 2048,
    "blocks_per_group": 10,
}
MAX_NEW_TOKENS = 160
HELD_OUT = 200
"""Questions of validation, as a task set has them by default."""
BYTES = 256 + 3
"""Letters stand alone, since they are what the puzzles are about: no token joins two, but for `phrases`."""


@contextmanager
def course(arguments: argparse.Namespace, tokenizer: Any) -> Iterator[Course]:
    """Held out is validation: the mean reward of greedy answers, by data set."""
    source = PuzzleExamples(arguments.seed, 1.0 if arguments.habits else 0.0)

    def tokenizer_of() -> Any:
        return train(
            [text for one in source(0) for text, _ in one.pieces()],
            BYTES + len(phrases()),
            phrases(),
            CHAT_TEMPLATE,
        )

    yield Course(
        source,
        {
            dataset: lambda policy, most, dataset=dataset: share(rewards(policy, dataset, most))  # type: ignore[misc]
            for dataset in DATASETS
        },
        DATASETS,
        WITHOUT_TOOLS.hash,
        Small(ARCHITECTURE, tokenizer_of),
        {"hasty": source.hasty},
        lambda policy: {
            "sampled": {dataset: share(rewards(policy, dataset, None, 1.0)) for dataset in DATASETS}
        },
        CHAT_TEMPLATE,
    )


def rewards(
    policy: Policy, dataset: str, most: int | None, temperature: float = 0.0
) -> list[float]:
    """What the data set's own rule gives for validation, or for so many questions spread over it."""
    policy.max_new_tokens = MAX_NEW_TOKENS
    made = puzzles(dataset, 0, "{}", VAL_SEED, HELD_OUT)
    entries = spread([made[number] for number in range(HELD_OUT)], most)
    replies = policy.go_on([prompted(entry["question"]) for entry in entries], temperature)
    return [
        float(made.score_answer(answer=extract_answer(reply), entry=entry))
        for reply, entry in zip(replies, entries, strict=True)
    ]


def prompted(question: str) -> str:
    """What the policy is prompted with."""
    *told, (reply, _) = Dialogue(
        (), [*asked(question), {"role": "assistant", "content": ""}]
    ).pieces()
    assert reply == END
    return "".join(text for text, _ in told)


def phrases() -> list[str]:
    """Texts that are one token each: what every conversation has, and what every question of a kind has."""
    found = [
        *SYSTEM_WITHOUT_TOOLS.splitlines(),
        f"Form:\n{FORM}\n\n",
        "Question: ",
        "system\n",
        "user\n",
    ]
    found += [
        "assistant\n",
        "Spell this word backward (example: sun -> nus): ",
        'How many times does the letter "',
    ]
    return [*found, '" appear in the text: "', '"?', "<answer>", "</answer>"]
