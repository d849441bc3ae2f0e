"""Messages between the host and a subprocess, one JSON object per line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NotRequired, TypeAlias, TypedDict

Changes: TypeAlias = dict[str, str]
"""Digests of changed records by table and key, empty for deleted ones."""
Arguments: TypeAlias = Mapping[str, object]
"""Arguments of a call, by name."""


class Definition(TypedDict):
    """A tool as described to a model."""

    name: str
    description: str
    parameters: dict[str, object]


class TaskEntry(TypedDict):
    """A task of a domain.

    `split` is `train` or `val`, which tau2-bench calls `test`; `assertions` counts those in natural
    language, which are not judged. A task has either `left_out`, the reason why it cannot be
    judged, or the rest: `changes` (None: the database does not count), `said`, `actions` and
    `refused` (counts of all gold actions and of refused ones).
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


class Request(TypedDict, total=False):
    """A request.

    Keys after `do` belong to `open`, `close` and `call`, keys after `session` to `call`.
    """

    id: int
    do: str
    session: str
    tool: str
    arguments: Arguments
    max_chars: int


class Answer(TypedDict, total=False):
    """An answer. With `fault`, the subprocess failed and there is no other key."""

    id: int
    fault: str
    tools: list[Definition]
    tasks: list[TaskEntry]
    text: str
    ok: bool
    changes: Changes
