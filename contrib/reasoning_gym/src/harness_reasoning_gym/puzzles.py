"""reasoning_gym's data sets, identical in the task set and in the grader."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from harness import TaskSetError

with warnings.catch_warnings():  # its dependencies trigger warnings of newer Python versions
    warnings.simplefilter("ignore")
    from reasoning_gym.factory import CURRICULA, DATASETS
    from reasoning_gym.utils import extract_answer as extract_answer


@lru_cache(maxsize=8)
def puzzles(dataset: str, level: int, parameters: str, seed: int, size: int) -> Any:
    """Return a data set of `size` puzzles.

    Args:
        level: Difficulty in the data set's curriculum; 0 is the lowest.
        parameters: Further parameters of its configuration, a JSON object.

    Raises:
        TaskSetError: The data set, level or parameter does not exist.
    """
    if dataset not in DATASETS:
        near = get_close_matches(dataset, DATASETS, 1)
        meant = (
            f" Did you mean {near[0]!r}?"
            if near
            else f" One of {len(DATASETS)}, for example 'chain_sum'"
        )
        raise TaskSetError(
            f"task.options.dataset={dataset!r}: reasoning_gym has no such data set.{meant}"
        )
    made, configuration = DATASETS[dataset]
    given = {**json.loads(parameters), "seed": seed, "size": size}
    try:
        return made(_at_level(dataset, level, given) if level else configuration(**given))
    except (TypeError, ValueError, AssertionError, AttributeError) as error:
        raise TaskSetError(
            f"reasoning_gym's {dataset!r} does not take {given} at level {level}: {error}"
        ) from error


def _at_level(dataset: str, level: int, given: Mapping[str, object]) -> Any:
    if dataset not in CURRICULA:
        raise TaskSetError(
            f"task.options.level={level}: reasoning_gym has no levels of {dataset!r}; leave it out"
        )
    curriculum = CURRICULA[dataset]()
    most = {name: len(attribute.levels) - 1 for name, attribute in curriculum.attributes.items()}
    if level > (highest := max(most.values())):
        raise TaskSetError(
            f"task.options.level={level}: the highest of reasoning_gym's {dataset!r} is {highest}"
        )
    for name in most:
        curriculum.set_attr_level(name, min(level, most[name]))
    return curriculum.generate_configuration(dict(given))
