"""A study file and its jobs, in the order in which they run."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from harness.compare.selection import named_arm
from harness.compare.states import config_hash
from harness.compare.trainers import of_one_trainer
from harness.config import Config, Setting, load_config, presets_dir
from harness.config.sections import Section
from harness.errors import ConfigError, NoSuchArm, nearest
from harness.plugins import trained_by
from harness.plugins.mixtures import one_agent
from harness.util.formatting import shown
from harness.util.parsing import WrittenFloat, differing, flatten, parse_yaml
from harness_study.arm_options import options_of_arm
from harness_study.labels import key_of, label_of
from harness_study.study_checks import (
    check_evaluations,
    check_margin,
    check_seeds,
    refuse_varied,
    seeds_of,
)

Values = list[Any] | dict[str, Any]
Choice = tuple[str, str, dict[str, Any]]
"""Axis, label and settings."""
_DIRECT = ("agent", "agent_match", "seed")
_NAME_LENGTH = 100
"""Most characters of a study's name, which is a folder's."""


class Study(Section):
    """A study file."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=_NAME_LENGTH)
    """Name of the folder of its runs."""
    question: str = ""
    """The question that it answers, in one line."""
    baseline: str | None = None
    """The arm, or the agent of a single arm, that others are compared with."""
    margin: float | None = Field(None, gt=0)
    """Differences below it count as none, in units of the reward. Declared before there is a
    result.
    """
    checkpoint: int | None = Field(None, ge=1)
    """A training step at which accuracy is compared too, as a secondary measure; declared before
    there is a result.
    """
    preset: str | None = "cpu"
    """The preset of all runs, unless the matrix varies it."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Configuration of all runs: dotted keys and values."""
    matrix: dict[str, Values] = Field(default_factory=dict)
    """Axes that are crossed: `agent`, `agent_match`, `seed`, `preset` or any dotted configuration
    key, with a list of values, or a mapping from label to value.
    """
    arms: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Named settings of several keys at once, crossed with the matrix."""
    launcher: dict[str, dict[str, object]] = Field(default_factory=dict)
    """Options of launchers by name, for `--launcher`."""
    evaluate: list[str] = Field(default_factory=list)
    """Agents in which every trained policy is evaluated afterwards."""
    evaluate_split: str = ""
    """The split of these evaluations, all of its questions; by default the split of the trainings'
    validation. Another split allows a choice on one split and a report on the other."""
    read_reserved: bool = False
    """Whether that split may be one that is reserved for a single reading at the end.

    Each reading is recorded.
    """


@dataclass(frozen=True)
class Job:
    """One run of a study.

    Attributes:
        key: Unique within the study, a valid file name.
        arm: Name of its arm; all jobs of an arm differ in their seed only.
        config: The resolved configuration.
        kind: `train`, or `eval` of the policy that job `parent` trains.
    """

    key: str
    arm: str
    config: Config
    kind: Literal["train", "eval"] = "train"
    parent: str | None = None

    @property
    def seed(self) -> int:
        """The seed, which identifies it within its arm."""
        return self.config.seed

    @property
    def config_hash(self) -> str:
        """Hash that identifies finished runs of the same configuration."""
        return config_hash(self.config.dump())


def read_study(path: Path) -> Study:
    """Read and check a study file; a bare name means one of `configs/studies`.

    Raises:
        ConfigError: The file cannot be read, or has an unknown key.
    """
    file = study_path(path)
    try:
        data = parse_yaml(file.read_bytes(), as_written=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read study {path}: {error}. Correct it there") from error
    if not isinstance(data, dict):
        raise ConfigError(f"study {path} must hold a mapping, not a {type(data).__name__}")
    for key in ("name", "question", "baseline"):
        # A name such as 1e-6 is text here.
        if isinstance(data.get(key), WrittenFloat):
            data[key] = str(data[key])
    try:
        study = Study.model_validate({"name": file.stem, **data})
    except ValidationError as error:
        first = error.errors()[0]
        key = _option(first["loc"])
        hint = f", got {shown(first['input'])}"
        if first["type"] == "extra_forbidden":
            hint = nearest(key, Study.model_fields)
        raise ConfigError(f"study {path}: {key!r}: {first['msg']}{hint}") from error
    for axis, values in study.matrix.items():
        # A product with an empty axis is empty: the study would have no run at all.
        if not values:
            raise ConfigError(f"study {path}: axis {axis!r} has no values")
    check_seeds(study, f"study {path}")
    check_evaluations(study, path)
    return study


def _option(location: Iterable[str | int]) -> str:
    """Return the dotted key of a pydantic error."""
    parts: list[str] = []
    for part in map(str, location):
        # pydantic names the branch of a union, such as `list[any]`, between the keys.
        if "[" not in part:
            parts.append(part)
    return ".".join(parts)


def study_path(path: Path) -> Path:
    """Return the file of a path or a bare name."""
    shipped = presets_dir() / "studies"
    if path.is_file():
        return path
    named = shipped / f"{str(path).removesuffix('.yaml')}.yaml"
    if not path.is_absolute() and named.is_file():
        return named
    names: list[str] = []
    for file in shipped.rglob("*.yaml"):
        names.append(str(file.relative_to(shipped).with_suffix("")))
    names.sort()
    like = nearest(str(path), names, ".")
    raise ConfigError(
        f"no study {str(path)!r}{like} Give a YAML file, or one of: {', '.join(names)}"
    )


def jobs_of(study: Study, overrides: Sequence[str] = (), only: Sequence[str] = ()) -> list[Job]:
    """Return the jobs of a study in running order: seed by seed, and within a seed every arm once.

    The first arm changes from seed to seed, so that a slowing machine or a warming cache
    favours no arm.

    Args:
        overrides: `key=value` on top of everything, as for `--set`; not of a key that the study
            varies.
        only: `axis=label`; leaves out all other arms. With several labels of one axis, each of them
            stays.

    Raises:
        ConfigError: A configuration is invalid, or the baseline matches no arm or several arms.
    """
    every = list(itertools.product(*_axes(study)))
    # Conditions on evaluated policies are no axis of the arms, so separate them.
    of_evaluations: list[str] = []
    of_arms: list[str] = []
    for item in only:
        (of_evaluations if item.startswith("evaluate=") else of_arms).append(item)
    arms = [combination for combination in every if _chosen(combination, of_arms)]
    if overrides:
        refuse_varied(study, overrides, *_varied(study, arms))
    evaluate: list[str] = []
    for agent in study.evaluate:
        if _chosen([("evaluate", agent, {})], of_evaluations):
            evaluate.append(agent)
    if not arms or (of_evaluations and not evaluate):
        raise ConfigError(f"no arm of study {study.name!r} matches --only {' '.join(only)}")
    jobs: list[Job] = []
    for place, seed in enumerate(seeds_of(study)):
        shift = place % len(arms)
        for combination in arms[shift:] + arms[:shift]:
            label, settings = _arm(study, combination, seed)
            job = Job(key_of(label, seed), label, _resolve(study, settings, overrides))
            jobs.append(job)
            # Right after its training, so that an interrupted study has whole results of some
            # arms instead of trainings alone.
            for agent in evaluate:
                jobs.append(_evaluation(job, agent, study.evaluate_split))
    if len({job.key for job in jobs}) < len(jobs):
        raise ConfigError(
            f"study {study.name!r} has the same run twice; give its values different labels"
        )
    # With all arms, not with the chosen ones: `--only` must not make a valid baseline unknown.
    _check_baseline(study, every)
    check_margin(study, jobs)
    return jobs


def _varied(
    study: Study, arms: Iterable[Sequence[Choice]]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the settings of the chosen named arms, and the keys that the matrix varies."""
    named: dict[str, dict[str, Any]] = {}
    for combination in arms:
        for axis, label, settings in combination:
            if axis == "arm":
                named[label] = settings
    keys: list[str] = []
    for axis, values in study.matrix.items():
        for value in values.values() if isinstance(values, dict) else values:
            keys += flatten({axis: value})
    if "preset" in keys or any("preset" in settings for settings in named.values()):
        keys += varied_keys(study)
    return list(named.values()), keys


def _axes(study: Study) -> list[list[Choice]]:
    """Return the choices of every axis but the seed, named arms first."""
    axes: list[list[Choice]] = []
    if study.arms:
        named_arms: list[Choice] = []
        for label, settings in study.arms.items():
            named_arms.append(("arm", label, dict(settings)))
        axes.append(named_arms)
    for axis, values in study.matrix.items():
        if axis == "seed":
            continue
        choices: list[Choice] = []
        if isinstance(values, dict):
            for label, value in values.items():
                choices.append((axis, str(label), {axis: value}))
        else:
            for value in values:
                choices.append((axis, label_of(axis, value), {axis: value}))
        axes.append(choices)
    return axes


def varied_keys(study: Study) -> list[str]:
    """Return configuration keys that differ between arms on purpose."""
    keys = dict.fromkeys(study.matrix)
    for settings in study.arms.values():
        keys |= dict.fromkeys(settings)
    # Evaluations use the policies that the trainings made, one of every arm and seed.
    if study.evaluate:
        keys["policy"] = None
    # A preset is a name; what varies are the keys that it sets.
    if "preset" in keys:
        configs = [flatten(job.config.dump()) for job in jobs_of(study)]
        for key in differing(configs):
            if key in configs[0]:
                keys[key] = None
    # Comparisons always allow these to differ, since they identify an arm or a seed.
    for key in ("seed", "agent", "agent_match", "preset"):
        keys.pop(key, None)
    return list(keys)


def differences(jobs: Iterable[Job]) -> dict[str, dict[str, Any]]:
    """Return the configuration keys that differ between arms, with the value of every arm.

    An option that only one of the arms' trainers has is left out: the trainer's name implies it.
    """
    configs: dict[str, dict[str, Any]] = {}
    for job in jobs:
        # An evaluation has the configuration of its training, but for the agent.
        if job.kind == "train":
            configs[job.arm] = {}
            for key, value in flatten(job.config.dump()).items():
                # An empty mapping is a section with options that only other arms set, so no value.
                if value != {}:
                    configs[job.arm][key] = value
    values = {}
    for key in differing(configs.values()):
        if key != "seed" and not of_one_trainer(key, configs.values()):
            values[key] = {arm: config.get(key) for arm, config in configs.items()}
    return values


def _resolve(study: Study, settings: Mapping[str, Any], overrides: Sequence[str]) -> Config:
    preset = settings.get("preset", study.preset)
    items: list[Setting] = []
    for key, value in options_of_arm(study.set, settings).items():
        if key not in (*_DIRECT, "preset"):
            items.append(f"{key}={json.dumps(value)}")
    for key in _DIRECT:
        if settings.get(key) is not None:
            items.append((key, settings[key]))
    # Options of the command line win, also over the agent of an arm.
    config = load_config(preset, None, [*items, *overrides])
    config.agent_match = trained_by(config.agent, config.agent_match)
    return config


def _arm(study: Study, combination: Sequence[Choice], seed: int) -> tuple[str, dict[str, Any]]:
    """Return name and settings of an arm."""
    settings = dict(study.set) | {"seed": seed}
    labels = []
    for _, label, choice_settings in combination:
        labels.append(label)
        settings |= choice_settings
    return " ".join(labels) or study.name, settings


def _check_baseline(study: Study, every: Sequence[Sequence[Choice]]) -> None:
    """Refuse a baseline that a comparison would not find, before anything runs."""
    if study.baseline is None:
        return
    arms: dict[str, list[str]] = {}
    for combination in every:
        label, settings = _arm(study, combination, 0)
        # A study that evaluates elsewhere compares the evaluations, not the trainings.
        for agent in study.evaluate:
            arms[_evaluated(label, agent)] = [agent]
        if not study.evaluate:
            # An arm that is named needs no agent, and resolving its configuration takes time.
            arms[label] = [] if label == study.baseline else [_resolve(study, settings, ()).agent]
    try:
        named_arm(study.baseline, arms)
    except NoSuchArm as error:
        raise ConfigError(f"study {study.name!r}: baseline: {error}") from error


def _evaluated(arm: str, agent: str) -> str:
    return f"{arm} -> {agent}"


def _evaluation(job: Job, agent: str, split: str = "") -> Job:
    """Return the evaluation of the policy that a job trains.

    Args:
        split: Where empty, the questions that the training is validated on.
    """
    config = job.config.model_copy(update={"agent": one_agent(agent)})
    if split:
        questions = config.task.model_copy(update={"val_split": split, "val_limit": None})
        config = config.model_copy(update={"task": questions})
    arm = _evaluated(job.arm, agent)
    return Job(key_of(arm, job.seed), arm, config, "eval", job.key)


def _chosen(combination: Sequence[tuple[str, str, dict[str, Any]]], only: Sequence[str]) -> bool:
    """Return whether an arm has one of the given labels on every axis that `only` names."""
    # A label or the value itself may be given.
    accepted: dict[str, tuple[str, str]] = {}
    for name, choice, values in combination:
        accepted[name] = (choice, str(values.get(name)))
    fits: dict[str, bool] = {}
    for item in only:
        axis, separator, label = item.partition("=")
        if not separator:
            raise ConfigError(f"--only takes axis=label, got {item!r}. Example: --only agent=NAME")
        if axis not in accepted:
            if axis == "seed":
                raise ConfigError(f"--only {item}: choose seeds with --seeds {label}")
            axes = ", ".join(accepted) or "none"
            raise ConfigError(f"--only {item}: the study has no axis {axis!r}. Axes: {axes}")
        # Labels of one axis are alternatives, different axes are conditions.
        fits[axis] = fits.get(axis, False) or label in accepted[axis]
    return all(fits.values())
