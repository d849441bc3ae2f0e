"""Names of arms that no study names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.compare.agents import canonical_agents
from harness.compare.identity import identity_keys
from harness.compare.policies import name_policies
from harness.compare.trainers import of_one_trainer
from harness.util.formatting import agent_label, without_middle
from harness.util.parsing import differing, flatten

if TYPE_CHECKING:
    from harness.runs.reading import Run

_OF_THE_DEVICE = (
    "gpus",
    "nodes",
    "rollout.runners",
    "rollout.concurrency",
    "rollout.host",
    "trusted_network",
    "rollout.store",
    "reward.concurrency",
    "train.micro_batch",
    "verl",
)


MOST_SETTINGS = 3
"""Settings in the name of an arm, unless more are needed to distinguish the arms."""
USUAL = "usual settings"
"""In the name of an arm without any setting of its own, if its agent has other arms."""
LONG_VALUE = 32
"""Characters of a value from which a name has only its first and last."""
Arm = tuple[tuple[str, ...], Mapping[str, Any]]
"""What a name always has (agent, device, kind), and the configuration."""


def name_arms(runs: Sequence[Run]) -> list[str]:
    """Name arms by their differences: the agent, and other configuration keys that differ.

    An agent in a file has one name at all paths of the same source (see `canonical_agents`).
    Settings that only follow the preset of another device are summarized by the device, and options
    that only one trainer has by the trainer. With many different settings, a name has those in
    which the arm differs from the usual value, without those that follow from others in the name.

    Returns:
        Remarks on settings that differ and are left out of names, if there are any.
    """
    canonical = canonical_agents(runs)
    configs: list[dict[str, Any]] = []
    devices: list[str] = []
    arms: list[Arm] = []
    for run in runs:
        config, device = flatten(run.record["config"]), str(run.record.get("device"))
        config["agent"] = canonical[str(config["agent"])]
        configs.append(config)
        devices.append(device)
        arms.append(((config["agent"], device, run.record["kind"]), config))
    # The seed is no part of a name: runs of an arm are those that differ in nothing else.
    keys = []
    for key in differing(configs):
        follows = _goes_with_device(key, configs, devices) or of_one_trainer(key, configs)
        if key not in ("agent", "seed", "device") and not follows:
            keys.append(key)
    usual = _usual(keys, arms) if len(keys) > MOST_SETTINGS else {}
    named = _distinguishing(keys, arms, usual)
    texts = _texts(named, keys, configs)
    several_devices = len(set(devices)) > 1
    several_kinds = len({run.record["kind"] for run in runs}) > 1
    agents = _short(set(canonical.values()), agent_label)
    several_arms = _agents_with_several_arms(keys, arms)
    for run, config, device in zip(runs, configs, devices, strict=True):
        if run.arm:
            continue
        agent = config["agent"]
        parts = [agents[agent]]
        if several_devices:
            parts.append(f"on {device}")
        values = {key: str(config.get(key)) for key in named}
        own = [texts[key][value] for key, value in values.items() if value != usual.get(key)]
        if usual and not own and agent in several_arms:
            # The agent's name alone would not say which of its arms this is.
            own = [USUAL]
        parts += own
        if several_kinds:
            parts.append(run.record["kind"])
        run.arm = " ".join(parts)
    name_policies(runs)
    remarks = []
    if common := [texts[key][usual[key]] for key in named if key in usual]:
        remarks.append(
            f"Names of arms leave out the usual settings, which most arms have: {', '.join(common)}."
        )
    return remarks + _left_out([key for key in keys if key not in named], configs)


def _texts(
    named: Iterable[str], keys: Sequence[str], configs: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, str]]:
    """Return the text of each setting in a name, by key and value."""
    texts: dict[str, dict[str, str]] = {}
    for key in named:
        head = _head(key, keys)
        values = _short({str(config.get(key)) for config in configs}, _shortened)
        texts[key] = {value: f"{head}={short}" for value, short in values.items()}
    return texts


def _agents_with_several_arms(keys: Sequence[str], arms: Sequence[Arm]) -> set[str]:
    """Return the agents that more than one arm has."""
    counts = Counter(config["agent"] for config in _distinct(keys, arms))
    return {agent for agent, count in counts.items() if count > 1}


def _distinct(keys: Sequence[str], arms: Sequence[Arm]) -> list[Mapping[str, Any]]:
    """Return one configuration per arm, however many seeds it has."""
    distinct = {_mark(fixed, config, keys): config for fixed, config in arms}
    return list(distinct.values())


def _usual(keys: Sequence[str], arms: Sequence[Arm]) -> dict[str, str]:
    """Return the value that more arms have than any other, by key; none if there is no such value."""
    configs = _distinct(keys, arms)
    usual = {}
    for key in keys:
        counts = Counter(str(config.get(key)) for config in configs)
        (value, count), *others = counts.most_common(2)
        if not others or others[0][1] < count:
            usual[key] = value
    return usual


def _distinguishing(
    keys: Sequence[str], arms: Sequence[Arm], usual: Mapping[str, str]
) -> list[str]:
    """Return the keys for names: all if they are few, else without those that others imply."""
    all_arms = len({_mark(fixed, config, keys) for fixed, config in arms})
    named = list(keys)
    major = [key for key in keys if _matters(key)]
    minor = [key for key in keys if key not in major]
    for key in (*reversed(minor), *reversed(major)):
        longest = max(
            sum(str(config.get(one)) != usual.get(one) for one in named) for _, config in arms
        )
        if longest <= MOST_SETTINGS:
            break
        without = [one for one in named if one != key]
        if len({_mark(fixed, config, without) for fixed, config in arms}) == all_arms:
            named = without
    return named


def _matters(key: str) -> bool:
    """Return whether a setting identifies a run, unlike the number of runners."""
    return bool(identity_keys(key)) and not key.startswith(_OF_THE_DEVICE)


def _mark(
    fixed: tuple[str, ...], config: Mapping[str, Any], keys: Iterable[str]
) -> tuple[str, ...]:
    """Return what distinguishes an arm by these keys."""
    return (*fixed, *(str(config.get(key)) for key in keys))


def _head(key: str, keys: Iterable[str]) -> str:
    """Return the end of a dotted key that no other key has."""
    parts = key.split(".")
    others = [other.split(".") for other in keys if other != key]
    for count in range(1, len(parts)):
        if all(other[-count:] != parts[-count:] for other in others):
            return ".".join(parts[-count:])
    return key


def _short(texts: Iterable[str], shortened: Callable[[str], str]) -> dict[str, str]:
    """Return short forms of texts; a text keeps its length if another has the same short form."""
    short = {text: shortened(text) for text in texts}
    counts = Counter(short.values())
    return {text: form if counts[form] == 1 else text for text, form in short.items()}


def _shortened(value: str) -> str:
    return without_middle(value, LONG_VALUE, "...", kept=LONG_VALUE - 4)


def _left_out(keys: Sequence[str], configs: Sequence[Mapping[str, Any]]) -> list[str]:
    if not keys:
        return []
    texts = []
    for key in keys:
        values = dict.fromkeys(_shortened(str(config.get(key))) for config in configs)
        texts.append(f"{key} ({', '.join(values)})")
    return [
        f"Arms also differ in settings that are not in their names: {'; '.join(texts)}. "
        "`harness runs diff` shows all differences between two runs."
    ]


def _goes_with_device(
    key: str, configs: Sequence[Mapping[str, object]], devices: Sequence[str]
) -> bool:
    """Return whether a setting has one value per device, as that of the device's preset."""
    if not key.startswith(_OF_THE_DEVICE):
        return False
    values = set()
    for device, config in zip(devices, configs, strict=True):
        values.add((device, str(config.get(key))))
    return len(values) == len(set(devices))
