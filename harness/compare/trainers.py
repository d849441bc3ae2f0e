"""Options of `train` that only one of the compared trainers has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

TRAINER = "train.trainer"


def of_one_trainer(key: str, settings: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a key of `train` differs between runs only because their trainers do.

    Args:
        key: Dotted name of the setting.
        settings: Settings of each run, with dotted names.
    """
    if not key.startswith("train.") or key == TRAINER:
        return False
    values: list[Any] = []
    having: set[str] = set()
    lacking: set[str] = set()
    for of_run in settings:
        trainer = str(of_run.get(TRAINER))
        if key not in of_run:
            lacking.add(trainer)
            continue
        having.add(trainer)
        # A list instead of a set: values may be lists.
        if of_run[key] not in values:
            values.append(of_run[key])
    return len(values) == 1 and bool(lacking) and not having & lacking
