"""Checks of a study before any job is planned or started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import ConfigError
from harness.plugins import reward_of
from harness.util.formatting import shown
from harness.util.parsing import differing, flatten

if TYPE_CHECKING:
    from harness_study.plan import Job, Study


def seeds_of(study: Study) -> list[Any]:
    """Return the seeds of the matrix, or the single seed of all runs."""
    seeds = study.matrix.get("seed", [study.set.get("seed", 0)])
    return list(seeds.values() if isinstance(seeds, dict) else seeds)


def check_seeds(study: Study, source: str) -> None:
    """Refuse seeds that are no whole numbers, or that are repeated.

    Args:
        source: Where the seeds come from, which begins the message.
    """
    seen: set[int] = set()
    for seed in seeds_of(study):
        if type(seed) is not int:  # `isinstance` would take True for 1
            raise ConfigError(f"{source}: a seed must be a whole number, got {shown(seed)}")
        if seed in seen:
            raise ConfigError(f"{source}: seed {seed} is repeated; remove one")
        seen.add(seed)


def check_evaluations(study: Study, path: Path) -> None:
    """Refuse options of evaluations in a study that has none."""
    options = {"evaluate_split": study.evaluate_split, "read_reserved": study.read_reserved}
    for key, value in options.items():
        if value and not study.evaluate:
            raise ConfigError(
                f"study {path}: {key!r} needs evaluations, and the study has none. "
                "Add `evaluate: [AGENT]`, or remove the key"
            )


def refuse_varied(
    study: Study, overrides: Iterable[str], arms: Iterable[Mapping[str, Any]], axes: Iterable[str]
) -> None:
    """Refuse to set a key that the study varies: its arms would have names of other settings.

    Args:
        arms: Settings of the chosen named arms. A key that is the same in all of them may be set.
        axes: Keys that the matrix varies, and those that its presets set differently.
    """
    varied = set(axes)
    settings = [flatten(dict(arm)) for arm in arms]
    varied.update(differing(settings))
    for item in overrides:
        key = item.partition("=")[0].strip()
        for axis in sorted(varied):
            # A section contains its options: `train={...}` sets `train.credit` as well.
            if f"{key}.".startswith(f"{axis}.") or f"{axis}.".startswith(f"{key}."):
                instead = "Choose arms with --only"
                if axis == "seed":
                    instead = "Choose seeds with --seeds"
                raise ConfigError(f"--set {item}: study {study.name!r} varies {axis!r}. {instead}")


def check_margin(study: Study, jobs: Iterable[Job]) -> None:
    """Refuse a margin that contains every possible difference: everything would be equivalent."""
    # Arms may have rewards with different ranges. An unknown reward is refused here as well,
    # margin or not.
    for reward in dict.fromkeys(reward_of(job.config) for job in jobs):
        width = reward.high - reward.low
        if study.margin is not None and study.margin >= width:
            raise ConfigError(
                f"margin: {study.margin:g} is not less than {width:g}, "
                f"the most that {reward.name} can differ by (0.05 "
                "of 0 to 1 is 5 points)"
            )
