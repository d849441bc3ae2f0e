"""Whether runs may be compared at all: what must be identical, what may follow the seed, what was allowed to differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.errors import NotComparable
from harness.layers import flatten
from harness.wording import with_cores

if TYPE_CHECKING:
    from harness.compare.runs import Run

FOLLOWS_SEED = frozenset({"data_order", "train_tasks"})
"""Identity keys that must be equal between runs of one seed only."""

IDENTITY_OF: dict[str, tuple[str, ...]] = {
    "task": ("task_set", "train_tasks", "val_tasks", "data_order", "steps"),
    "reward": ("reward", "reward_options", "reward_shuffled"),
    "policy": ("model",),
    "sampling": ("sampling_train", "sampling_val", "max_prompt_tokens"),
    "sandbox": ("sandbox",),
    "rollout.group_size": ("group_size",),
    "rollout.timeout_s": ("rollout_timeout_s",),
    "rollout.retries": ("rollout_retries",),
    "train.batch_size": ("train.batch_size", "steps", "data_order", "train_tasks"),
    "train.steps": ("train.steps", "steps", "data_order", "train_tasks"),
    "train.epochs": ("train.epochs", "steps", "data_order", "train_tasks"),
    "max_turns": ("max_turns",),
    "verl": ("verl",),
}
"""The identity keys that a configuration key decides, by the longest prefix of its name."""

_MISSING = object()


def identity_keys(config_key: str) -> tuple[str, ...]:
    """What of the identity changes when this configuration key is varied."""
    parts = config_key.split(".")
    for length in range(len(parts), 0, -1):
        found = IDENTITY_OF.get(".".join(parts[:length]))
        if found is not None:
            return found
    return (config_key,)


def check_identity(runs: Sequence[Run], allow: Iterable[str] = (), varied: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Refuse runs that differ where they must not.

    Args:
        allow: Identity keys (or their prefixes) that the user lets differ.
        varied: Configuration keys that a study varies on purpose.

    Returns:
        What differs with permission: key, why (`allowed` or `varied`), and the value of every run.

    Raises:
        NotComparable: A key differs without permission; the message names it and two values.
    """
    allowed = list(allow)
    known = {key for run in runs for key in _comparable(run)}
    for key in allowed:
        if not any(_covers(key, one) for one in known):
            raise NotComparable(
                f"--allow {key}: no such key. Known: {', '.join(sorted({one.split('.')[0] for one in known}))}"
            )
    by_study = [key for one in varied for key in identity_keys(one)]
    exceptions: list[dict[str, Any]] = []
    for key in sorted(known):
        groups: dict[Any, list[Run]] = {}
        for run in runs:
            groups.setdefault(run.seed if key.split(".")[0] in FOLLOWS_SEED else None, []).append(run)
        clash = next((pair for group in groups.values() if (pair := _clash(group, key))), None)
        if clash is None:
            continue
        permission = "varied" if any(_covers(one, key) for one in by_study) else None
        permission = "allowed" if any(_covers(one, key) for one in allowed) else permission
        if permission is None:
            first, second = clash
            top = key.split(".")[0]
            others = any(one != key and _covers(top, one) and _clash([first, second], one) for one in known)
            raise NotComparable(
                f"{key} differs: {_short(_comparable(first).get(key, _MISSING))} in {first.id}, "
                f"{_short(_comparable(second).get(key, _MISSING))} in {second.id}. "
                f"If that is what you mean to compare, say --allow {top if others else key}"
            )
        exceptions.append(
            {"key": key, "why": permission, "values": {run.id: _comparable(run).get(key) for run in runs}}
        )
    return exceptions


def check_data(runs: Iterable[Run]) -> None:
    """Refuse runs whose databases changed while they ran.

    Raises:
        NotComparable: One did; the message names it and the databases.
    """
    for run in runs:
        result = run.record["result"]
        changed = result.get("data_changed") if result else None
        if changed:
            raise NotComparable(
                f"{run.id}: its databases changed while it ran ({', '.join(map(str, changed))}), so nobody knows what "
                "its verdicts are of. Leave it out and run it again"
            )


def check_parity(runs: Sequence[Run], allow: Iterable[str] = ()) -> list[str]:
    """Whether the agents of several plugins are certified to be the same agent.

    Returns:
        Remarks for the output: what is uncertified, and what is not meant to be the same.

    Raises:
        NotComparable: Strict agents of several plugins lack a certificate, or have them for different
            scenarios or prompts.
    """
    remarks: list[str] = []
    agents = {run.record["plugin"]: run.record.get("parity") for run in runs}
    for run in runs:
        agents[run.record["plugin"]] = agents[run.record["plugin"]] or run.record.get("parity")
    permitted = "parity" in set(allow)
    if len(agents) > 1:
        missing = [name for name, found in agents.items() if found is None and not _excused(name)]
        if missing and not permitted:
            raise NotComparable(
                f"parity differs: {missing[0]} ran without a parity certificate, so nobody knows whether it is the "
                f"same agent. Prove it with `harness parity {missing[0]}` before training, or say --allow parity"
            )
        if missing:
            remarks.append(f"Not certified to be the same agent (allowed): {', '.join(missing)}.")
        for part in ("prompts", "scenarios", "reference"):
            values = {
                name: found["fingerprint"].get(part)
                for name, found in agents.items()
                if found is not None and found.get("strict")
            }
            if len(set(values.values())) > 1 and not permitted:
                (one, first), (two, second) = _two_of(values)
                raise NotComparable(
                    f"parity.{part} differs: {first} for {one}, {second} for {two}. "
                    "Certify both anew with `harness parity`, or say --allow parity"
                )
    idiomatic = [
        name for name, found in agents.items() if (found is not None and not found.get("strict")) or _idiomatic(name)
    ]
    if idiomatic:
        remarks.append(
            f"Idiomatic, that is not the same agent on purpose: {', '.join(sorted(idiomatic))}. "
            "Differences are of framework and scaffolding together."
        )
    return remarks


def circumstances(runs: Sequence[Run]) -> list[str]:
    """Remarks on what is not decisive but may matter: code, library versions, machines."""
    remarks: list[str] = []
    codes = [run.record["commit"] for run in runs]
    commits = {code["hash"] if code else "unknown" for code in codes}
    if commits == {"unknown"}:
        installed = ", ".join(sorted({str(run.record.get("harness_version")) for run in runs}))
        remarks.append(f"The commit of the code is not known: harness {installed}, installed.")
    if len(commits) > 1:
        remarks.append(f"Runs were made by {len(commits)} commits: {', '.join(sorted(one[:10] for one in commits))}.")
    if any(code["dirty"] for code in codes if code):
        remarks.append("Some runs were made with uncommitted changes in the source tree.")
    names = dict.fromkeys(name for run in runs for name in run.record.get("versions", {}))
    for name in names:
        versions = {str(run.record.get("versions", {}).get(name)) for run in runs}
        if len(versions) > 1:
            remarks.append(f"Versions of {name} differ: {', '.join(sorted(versions))}.")
    machines = {_machine(run) for run in runs}
    if len(machines) > 1:
        remarks.append(f"Machines differ, so times are not comparable: {'; '.join(sorted(machines))}.")
    shared = sorted({_sharing(launch) for run in runs for launch in run.record.get("launches", [])})
    if len(shared) > 1:
        ways = "; ".join(_sharing_text(*one) for one in shared)
        remarks.append(f"Machines were shared unequally, so times are not comparable: {ways}.")
    elif shared and shared[0][0] > 1:
        remarks.append(
            f"Machines were shared alike, {_sharing_text(*shared[0])}: times compare with each other, not with those "
            "of a run alone."
        )
    return remarks


def _sharing(launch: Mapping[str, Any]) -> tuple[int, int]:
    """Runs at once, 0 outside a study, which alone knows; and cores, 0 where an older record does not say."""
    return int(launch.get("runs_at_once", 0)), int(launch.get("cores") or 0)


def _sharing_text(at_once: int, cores: int) -> str:
    text = f"{at_once} run{'s' * (at_once > 1)} at a time" if at_once else "outside a study"
    return f"{text} {with_cores(cores)}" if cores else text


def _comparable(run: Run) -> dict[str, Any]:
    flat = {"kind": run.record.get("kind", "train"), **flatten(run.record["identity"])}
    return {key: value for key, value in flat.items() if value != {}}  # an option not set, whoever else sets some


def _clash(group: Sequence[Run], key: str) -> tuple[Run, Run] | None:
    first = group[0]
    for other in group[1:]:
        if _comparable(first).get(key, _MISSING) != _comparable(other).get(key, _MISSING):
            return first, other
    return None


def _covers(permission: str, key: str) -> bool:
    return key == permission or key.startswith(f"{permission}.")


def _short(value: Any) -> str:
    if value is _MISSING:
        return "not set"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _machine(run: Run) -> str:
    data = run.record.get("hardware", {})
    gpus = f", {len(data['gpus'])} x {data['gpus'][0]}" if data.get("gpus") else ""
    return f"{data.get('processor', 'unknown')}, {data.get('cores', '?')} cores{gpus}"


def _excused(name: str) -> bool:
    from harness.plugins import is_reference

    return is_reference(name) or _idiomatic(name)


def _idiomatic(name: str) -> bool:
    from harness.errors import PluginError
    from harness.plugins import agent_spec

    try:
        return not agent_spec(name).strict
    except PluginError:  # made elsewhere, by a plugin that is not installed here
        return name.endswith("_idiomatic")


def _two_of(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    items = list(values.items())
    other = next(item for item in items if item[1] != items[0][1])
    return [items[0], other]
