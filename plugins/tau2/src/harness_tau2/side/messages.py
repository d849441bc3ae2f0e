"""What the host and a side process say to each other, a JSON object a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NotRequired, TypeAlias, TypedDict

Changes: TypeAlias = dict[str, str]
"""By table and key, a digest of every record that is not as it was, empty where it is gone."""
Arguments: TypeAlias = Mapping[str, object]
"""Of a call, by name."""


class Definition(TypedDict):
    """A tool as a model is told of it."""

    name: str
    description: str
    parameters: dict[str, object]


class Told(TypedDict):
    """A task of a domain.

    `split` is `train` or `val`, which tau2-bench calls `test`; `assertions` counts those in natural language, which
    nothing judges. Then there is either `left_out`, saying why it cannot be judged, or the rest: `changes` (None: the
    database does not count), `said`, `actions` and `refused` (how many, and of how many the tools say no).
    """

    id: str
    split: str
    scenario: str
    assertions: int
    left_out: NotRequired[str]
    changes: NotRequired[Changes | None]
    said: NotRequired[list[str]]
    actions: NotRequired[int]
    refused: NotRequired[int]


class Asked(TypedDict, total=False):
    """What is asked; those after `do` go with `open`, `close` and `call`, those after `session` with `call`."""

    id: int
    do: str
    session: str
    tool: str
    arguments: Arguments
    max_chars: int


class Answer(TypedDict, total=False):
    """What is answered; `fault` where the side process is at fault, and then nothing else."""

    id: int
    fault: str
    tools: list[Definition]
    tasks: list[Told]
    text: str
    ok: bool
    changes: Changes
