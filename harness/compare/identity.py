"""Check whether runs may be compared: identical keys, keys that follow the seed, permitted keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, get_args

from harness.compare.agents import canonical_agents
from harness.compare.keys import Exempt
from harness.compare.kinds import other_kinds
from harness.compare.trainers import TRAINER, of_one_trainer
from harness.errors import NotComparable
from harness.runs.record_types import COSTS_ONLY, keys
from harness.runs.schema import Group, Identity
from harness.util.formatting import shortened
from harness.util.parsing import flatten

if TYPE_CHECKING:
    from harness.runs.reading import Run

GROUPS = (*get_args(Group), "run")
_MISSING = object()
_PHASES = {
    "train_tasks": ("train", ": as many, but others"),
    "val_tasks": ("val", ": as many, but others"),
    "data_order": ("train", ": as many, but others or in another order"),
}
"""Keys with a hash of questions: their phase, and what differs if not the number of questions."""
_TRAINING = "train."
"""Prefix of the settings of a training."""
_ARM = ("agent", "agent_match")
"""Keys that may differ between arms without permission, but not between runs of one arm."""
Values = list[tuple[Any, list[str]]]
"""Different values with the names of the runs that have them."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A key that must be equal and differs between runs.

    Attributes:
        values: Every value with the names of the runs that have it.
        texts: Every value as text.
    """

    key: str
    values: Values
    texts: list[str]

    @property
    def top(self) -> str:
        """The identity key that contains it."""
        return self.key.partition(".")[0]

    @property
    def group(self) -> str:
        """The group of the key."""
        return keys()[self.top].group if self.top in keys() else "run"

    def __str__(self) -> str:
        places = []
        for text, (_, names) in zip(self.texts, self.values, strict=True):
            places.append(f"{text} in {_some(names)}")
        message = f"{self.key} differs: {', '.join(places)}"
        if self.key not in _PHASES:
            return message
        # With equal numbers of questions, the texts differ in the hash only, so the message
        # states that the questions differ.
        counts = {text.partition(" (")[0] for text in self.texts}
        return message + _PHASES[self.key][1] if len(counts) < len(self.texts) else message


def identity_keys(config_key: str) -> list[str]:
    """Return the identity keys that change when this configuration key varies."""
    names = []
    for name, key in keys().items():
        for prefix in key.config:
            if _covers(prefix, config_key):
                # A key with the name of a section has an entry for each of its settings.
                names.append(config_key if name == prefix else name)
    return names


def differences(runs: Sequence[Run], agents: Mapping[str, str] | None = None) -> list[Difference]:
    """Return all forbidden differences between runs, including those between runs of one seed.

    Args:
        agents: The result of `canonical_agents`, if agents and trained roles must be equal, too.
    """
    flat: list[tuple[Run, Mapping[str, Any]]] = []
    every_key: set[str] = set()
    by_name: dict[str, Run] = {}
    for run in runs:
        settings = _comparable(run, agents)
        flat.append((run, settings))
        every_key.update(settings)
        # Names may repeat. Texts then describe the first run, as the lists of names begin with it.
        by_name.setdefault(run.name, run)
    forbidden = []
    for key in sorted(every_key):
        for values in _values_by_seed(key, flat):
            if len(values) > 1:
                texts = []
                for value, names in values:
                    texts.append(_words(by_name[names[0]], key, value))
                forbidden.append(Difference(key, values, texts))
                break
    return forbidden


def _values_by_seed(key: str, flat: Iterable[tuple[Run, Mapping[str, Any]]]) -> Iterable[Values]:
    """Return the values of a key in groups of runs that must have the same one."""
    top = keys().get(key.partition(".")[0])
    groups: dict[int | None, Values] = {}
    for run, settings in flat:
        # Settings of the policy's training that an evaluation does not record are unknown.
        if key.startswith(_TRAINING) and not run.trained and key not in settings:
            continue
        # The order of the tasks follows the seed, so such keys must agree only within a seed.
        group = groups.setdefault(run.seed if top and top.by_seed else None, [])
        _add_value(group, settings.get(key, _MISSING), run.name)
    return groups.values()


def _add_value(values: Values, new: object, name: str) -> None:
    # A list instead of a dictionary: values may be lists, which cannot be keys.
    for value, names in values:
        if value == new:
            names.append(name)
            return
    values.append((new, [name]))


def check_identity(
    runs: Sequence[Run], allow: Iterable[str] = (), varied: Iterable[str] = ()
) -> list[Exempt]:
    """Refuse runs with forbidden differences; runs of one arm must agree in varied keys, too.

    Args:
        allow: Identity keys (or their prefixes) that may differ.
        varied: Configuration keys that a study varies on purpose.

    Returns:
        Permitted differences.

    Raises:
        NotComparable: Keys differ without permission; the message has all of them.
    """
    allowed = list(allow)
    _check_allowed(allowed, runs)
    by_study: list[str] = []
    for config_key in varied:
        by_study += identity_keys(config_key)
    # A key that a study varies between its arms must still be the same within an arm.
    agents = canonical_agents(runs)
    mixed = _within_arms(runs, agents)
    forbidden: dict[str, Difference] = {}
    for difference in differences(runs):
        forbidden[difference.key] = difference
    # A difference within an arm is reported as such, also where it is one between all runs.
    forbidden |= mixed
    exceptions: list[Exempt] = []
    refused: list[Difference] = []
    settings = [_comparable(run) for run in runs]
    for key, difference in forbidden.items():
        names = [key]
        # Permission for another trainer is permission for the options that only one of them has.
        if of_one_trainer(key, settings):
            names.append(TRAINER)
        by_hand = any(_covered(name, allowed) for name in names)
        varied_here = any(_covered(name, by_study) for name in names)
        if by_hand or (key not in mixed and varied_here):
            exempt: Exempt = {
                "key": key,
                "why": "allowed" if by_hand else "varied",
                "values": _values_by_run(key, runs, agents),
            }
            if key in _PHASES:
                exempt["texts"] = difference.texts
            exceptions.append(exempt)
        else:
            refused.append(difference)
    if refused:
        raise NotComparable(_refusal(refused))
    return exceptions


def _values_by_run(key: str, runs: Iterable[Run], agents: Mapping[str, str]) -> dict[str, Any]:
    """Return every run's value of a key, by the run's id."""
    values: dict[str, Any] = {}
    for run in runs:
        values[run.id] = _comparable(run, agents).get(key)
    return values


def _check_allowed(allowed: Iterable[str], runs: Iterable[Run]) -> None:
    """Refuse permissions for unknown keys: with a mistyped one, nothing would be permitted."""
    # A section may be empty in all of these runs.
    all_keys: set[str] = {*Identity.__annotations__, *_ARM}
    for run in runs:
        all_keys.update(_comparable(run))
    for permission in allowed:
        if not any(_covers(permission, key) for key in all_keys):
            # Single keys are too many to read, so the message names the sections.
            tops = sorted({"parity", "unused_tools", *(key.split(".")[0] for key in all_keys)})
            raise NotComparable(f"--allow {permission}: no such key. Known: {', '.join(tops)}")


def _within_arms(runs: Iterable[Run], agents: Mapping[str, str]) -> dict[str, Difference]:
    """Return forbidden differences between runs of one arm, by key."""
    arms: dict[str, list[Run]] = {}
    for run in runs:
        arms.setdefault(run.arm, []).append(run)
    mixed: dict[str, Difference] = {}
    for arm_runs in arms.values():
        for difference in differences(arm_runs, agents):
            if not _follows_the_seed(difference, arm_runs):
                mixed[difference.key] = difference
    return mixed


def _follows_the_seed(difference: Difference, arm_runs: Sequence[Run]) -> bool:
    """Return whether the runs of an arm may differ in a key, as the policies of its seeds do."""
    # The policies of evaluations come from trainings of different seeds. Two of these may end with
    # equal weights. Trainings with several starts need permission.
    if difference.key in ("model", "demonstrations"):
        return not any(run.trained for run in arm_runs)
    # The policy of a role may come from another training of the same seed. A value that several
    # runs share was set by hand. Any other setting is that of the arm: if it was changed between
    # two seeds, it has one value per run, too.
    return difference.top == "role_models" and len(difference.values) == len(arm_runs)


def _refusal(refused: Sequence[Difference]) -> str:
    """Return all differences as text: one in a line, several grouped by subject."""
    for difference in refused:
        # A training and an evaluation differ in nearly every key; the list would hide the reason.
        if difference.key == "kind":
            names_by_kind = {}
            for kind, names in difference.values:
                names_by_kind[str(kind)] = names
            return other_kinds(names_by_kind)
    refused = sorted(refused, key=lambda difference: GROUPS.index(difference.group))
    advice = f"If that is what you mean to compare, say {_permissions(refused)}"
    if any(difference.key == "task_set.name" for difference in refused):
        refused = _without_rest_of_task_set(refused)
    if len(refused) == 1:
        return f"{refused[0]}. {advice}"
    lines = [f"the runs differ in {len(refused)} keys that must be the same"]
    for group, members in groupby(refused, key=lambda difference: difference.group):
        lines.append(f"{group}:")
        for difference in members:
            lines.append(f"  {difference}")
    return "\n".join([*lines, advice])


def _permissions(refused: Iterable[Difference]) -> str:
    """Return the options that permit differences: one for all keys below the same key."""
    by_top: dict[str, list[str]] = {}
    for difference in refused:
        by_top.setdefault(difference.top, []).append(difference.key)
    options = []
    for top, members in by_top.items():
        options.append(f"--allow {members[0] if len(members) == 1 else top}")
    return " ".join(options)


def _without_rest_of_task_set(refused: Iterable[Difference]) -> list[Difference]:
    """Return differences without details of the task set: with another one, they all differ."""
    shown = []
    for difference in refused:
        if difference.top != "task_set" or difference.key == "task_set.name":
            shown.append(difference)
    return shown


def check_data(runs: Iterable[Run]) -> None:
    """Refuse runs with a task set that changed during the run.

    Raises:
        NotComparable: A task set changed; the message names the run and the change.
    """
    for run in runs:
        result = run.record["result"]
        changed = result.get("data_changed") if result else None
        if changed:
            raise NotComparable(
                f"{run.name}: its task set changed while it ran ({', '.join(changed)}), "
                "so its verdicts cannot be trusted. Leave it out and run it again"
            )


def _comparable(run: Run, agents: Mapping[str, str] | None = None) -> dict[str, Any]:
    flat = {"kind": run.record["kind"], "samples": 1, **flatten(run.record["identity"])}
    if agents is not None:
        config = run.record["config"]
        flat["agent"] = agents[str(config.get("agent"))]
        flat["agent_match"] = config.get("agent_match")
    is_training = run.record["kind"] == "train"
    if is_training:
        # Rounding differs between devices and adds up over the steps of a training. The policy of
        # an evaluation may be served on any machine.
        flat["device"] = run.record["device"]
    if not run.record["identity"].get("deterministic"):
        for option in COSTS_ONLY:
            flat.pop(f"verl.{option}", None)
    settings: dict[str, Any] = {}
    for key, value in flat.items():
        # An evaluation trains nothing, and its section `train` depends on the installed trainers
        # and on the device.
        if key.startswith(_TRAINING) and not is_training:
            continue
        # An empty mapping is a section with options that only other runs set, so it is no value.
        if value != {}:
            settings[key] = value
    return settings if is_training else settings | _training_of_policy(run)


def _training_of_policy(run: Run) -> dict[str, Any]:
    """Return settings of the training that made an evaluation's policy; empty if it is unknown.

    The evaluation has the training's configuration. Only settings that identify a training count.
    """
    parent = run.record.get("parent")
    if not parent:
        return {}
    configured_train = run.record["config"].get("train", {})
    configured = flatten({"train": configured_train})
    identifying = flatten({"train": run.record["identity"].get("train", {})})
    # Checkpoints of different steps are different policies. The last checkpoints of trainings are
    # alike here, because the length of a training is a setting of its own.
    last = parent["step"] == configured_train.get("steps")
    settings: dict[str, Any] = {f"{_TRAINING}checkpoint": "the last" if last else parent["step"]}
    for key in configured:
        # How often the training was validated does not matter: its checkpoint is measured.
        if key in identifying and key != f"{_TRAINING}val_every" and configured[key] != {}:
            settings[key] = configured[key]
    return settings


def _covers(permission: str, key: str) -> bool:
    return key == permission or key.startswith(f"{permission}.")


def _covered(key: str, permissions: Iterable[str]) -> bool:
    return any(_covers(permission, key) for permission in permissions)


def _words(run: Run, key: str, value: Any) -> str:
    """Return a value as text: a hash of questions with number and split, a long hash shortened."""
    if key in _PHASES and value is not _MISSING:
        phase, task = _PHASES[key][0], run.record["config"].get("task", {})
        count = run.record["tasks"]["train" if phase == "train" else "val"]
        return f"{count} questions of {task.get('name')}/{task.get(f'{phase}_split')} ({value[:8]})"
    if key == "agent":
        return repr(value)  # paths of files often differ only near their end
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{32,}", value):
        return value[:8]
    return _short(value)


def _short(value: object) -> str:
    if value is _MISSING:
        return "not set"
    text = repr(value) if isinstance(value, str) else str(value)
    return shortened(text, 60)


def _some(names: Sequence[str]) -> str:
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 2 else " and ".join(names)
