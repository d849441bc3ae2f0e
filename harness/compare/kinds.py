"""Why a training and an evaluation are not compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def other_kinds(names: Mapping[str, Sequence[str]]) -> str:
    """Return which runs are evaluations and which trainings, and what to do instead.

    Whatever else differs between such runs follows from that.

    Args:
        names: Names of runs by their kind, `train` or `eval`.
    """
    trainings, evaluations = names.get("train", []), names.get("eval", [])
    first = trainings[0] if trainings else "RUN"
    return (
        f"{_are(evaluations, 'an evaluation', 'evaluations')} and "
        f"{_are(trainings, 'a training', 'trainings')}: "
        "they use other questions and other sampling. "
        f"Measure the training's checkpoint with `harness eval {first}`, and compare evaluations"
    )


def _are(names: Sequence[str], one: str, several: str) -> str:
    if len(names) == 1:
        return f"{names[0]} is {one}"
    shown = " and ".join(names) if len(names) == 2 else f"{names[0]} and {len(names) - 1} more"
    return f"{shown} are {several}"
