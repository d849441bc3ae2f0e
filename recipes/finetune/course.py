"""What a course is: where its conversations come from, and what is measured on questions held out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recipes.finetune.policy import Policy
from recipes.finetune.rows import Source

Measure = Callable[[Policy, int | None], float]
"""A share between 0 and 1, of at most so many questions."""


PRETRAINING = {
    "learning_rate": 2e-3,
    "minutes": 6.0,
    "replays": 0,
    "batch_tokens": 65536,
    "blocks_per_group": 40,
    "every": 1000,
}
"""The pace of a training from nothing, where a course has no other."""


@dataclass(frozen=True)
class Small:
    """How a policy for a course is made from nothing.

    Attributes:
        architecture: Of a Qwen2 model, as `from_nothing` takes it.
        tokenizer: Makes one, trained on the course's texts.
    """

    architecture: tuple[int, ...]
    tokenizer: Callable[[], Any]


@dataclass(frozen=True)
class Course:
    """What is learned, and how it is measured.

    Attributes:
        source: Makes the conversations.
        held_out: Measures by name of what they are of.
        until: Names of those whose mean `--until` looks at.
        prompts: Hash of the prompts that the policy learns.
        small: The policy to begin with where no base is named.
        about: For the manifest.
        report: What else is measured at the end; by default nothing.
        chat_template: What its conversations are written in; None where they were rendered by the base's own.
    """

    source: Source
    held_out: Mapping[str, Measure]
    until: Sequence[str]
    prompts: str
    small: Small
    about: dict[str, Any] = field(default_factory=dict)
    report: Callable[[Policy], dict[str, Any]] = lambda policy: {}
    chat_template: str | None = None
