"""Estimate tokens and GPU hours of a plan's trainings from measured runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import TypedDict

import harness
from harness.config import resolve_device
from harness_study.timing import Timing, measured

if TYPE_CHECKING:
    from harness.compare.costs import Price
    from harness.config import Config


class PlannedCost(TypedDict):
    """The estimated cost of all missing trainings together."""

    prompt_tokens: int
    response_tokens: int
    gpu_hours: float | None
    """None if no training uses a GPU."""
    trainings: int
    """Number of trainings in the estimate."""
    source: str
    """The measured run."""
    published: bool
    """Whether that run is a published record instead of a run of this machine."""


def published() -> list[tuple[Mapping[str, Any], Timing]]:
    """Return configuration and timing of a checkout's published records; none in other installs."""
    from harness.runs.reading import find_all

    folder = Path(harness.__file__).parents[1] / "results"
    return measured(find_all(folder)) if folder.is_dir() else []


def planned_cost(
    jobs: Sequence[tuple[Config, Timing, int]], of_published: bool
) -> PlannedCost | None:
    """Return the estimated cost of trainings; None if no similar one was measured.

    Args:
        jobs: Configuration, timing and number of steps of every training to be run.
        of_published: Whether the timings are of published records.
    """
    prompt, response, counted = 0.0, 0.0, 0
    gpu_hours = 0.0
    for config, timing, steps in jobs:
        tokens = _tokens_per_step(timing.path)
        if tokens is None:
            continue
        counted += 1
        prompt += steps * tokens[0]
        response += steps * tokens[1]
        if resolve_device(config.device) != "cpu":
            gpu_hours += timing.of(steps) * config.gpus * config.nodes / 3600
    if not counted:
        return None
    return {
        "prompt_tokens": round(prompt),
        "response_tokens": round(response),
        "gpu_hours": gpu_hours or None,
        "trainings": counted,
        "source": jobs[0][1].source,
        "published": of_published,
    }


@cache
def _tokens_per_step(path: Path) -> tuple[float, float] | None:
    """Return a step's prompt and response tokens, validation included; None without its table."""
    from harness.compare.costs import tokens_of
    from harness.runs.folder import RunFolder

    folder = RunFolder(path)
    tokens, result = tokens_of(folder), folder.read()["result"]
    if tokens is None or not result or not result.get("steps"):
        return None
    return tokens.prompt / result["steps"], tokens.response / result["steps"]


def cost_text(cost: PlannedCost, price: Price | None) -> str:
    """Return the estimate in one sentence, without more digits than are known."""
    from harness.compare.costs import significant

    parts = [
        f"{significant(cost['prompt_tokens'])} prompt tokens",
        f"{significant(cost['response_tokens'])} response tokens",
    ]
    if cost["gpu_hours"] is not None:
        parts.append(f"{significant(cost['gpu_hours'])} GPU-hours")
    if price is not None:
        money = price.of(cost["prompt_tokens"], cost["response_tokens"])
        parts.append(f"price {significant(money)}")
    record = "the published record" if cost["published"] else "run"
    trainings = "1 training" if cost["trainings"] == 1 else f"{cost['trainings']} trainings"
    return f"Estimated cost of {trainings}, by {record} {cost['source']}: {', '.join(parts)}."
