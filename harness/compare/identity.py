"""Check whether runs may be compared: identical keys, keys that follow the seed, permitted keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from typing import TYPE_CHECKING, Any, get_args

from harness.compare.keys import Exempt
from harness.compare.kinds import other_kinds
from harness.compare.shadow_results import check_shadow, is_idiomatic
from harness.errors import NotComparable
from harness.runs.record_types import keys
from harness.runs.schema import Certificate, Group
from harness.util.formatting import with_cores
from harness.util.parsing import flatten

if TYPE_CHECKING:
    from harness.compare.runs import Run

GROUPS = (*get_args(Group), "run")
_MISSING = object()
_PHASES = {
    "train_tasks": ("train", ": as many, but others"),
    "val_tasks": ("val", ": as many, but others"),
    "data_order": ("train", ": as many, but others or in another order"),
}
"""Keys with a hash of questions: their phase, and what differs if not the number of questions."""
_ARM = ("agent", "agent_match")
"""Keys that may differ between arms without permission, but not between runs of one arm."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A key that must be equal and differs between runs.

    Attributes:
        values: Every value with the names of the runs that have it.
        said: Every value as text.
    """

    key: str
    values: list[tuple[Any, list[str]]]
    said: list[str]

    @property
    def top(self) -> str:
        """The identity key that contains it."""
        return self.key.partition(".")[0]

    @property
    def group(self) -> str:
        """The group of the key."""
        return keys()[self.top].group if self.top in keys() else "run"

    def __str__(self) -> str:
        found = (
            f"{said} in {_some(names)}"
            for said, (_, names) in zip(self.said, self.values, strict=True)
        )
        alike = self.key in _PHASES and len({said.partition(" (")[0] for said in self.said}) < len(
            self.said
        )
        return f"{self.key} differs: {', '.join(found)}{_PHASES[self.key][1] if alike else ''}"


def identity_keys(config_key: str) -> list[str]:
    """Return the identity keys that change when this configuration key varies."""
    return [
        config_key if name == prefix else name
        for name, key in keys().items()
        for prefix in key.config
        if _covers(prefix, config_key)
    ]


def differences(runs: Sequence[Run], more: Sequence[str] = ()) -> list[Difference]:
    """Return all forbidden differences between runs, including those between runs of one seed.

    Args:
        more: Further configuration keys that must be equal.
    """
    flat = [(run, _comparable(run, more)) for run in runs]
    found = []
    for key in sorted({key for _, one in flat for key in one}):
        top = keys().get(key.partition(".")[0])
        groups: dict[int | None, list[tuple[object, list[str]]]] = {}
        for run, one in flat:
            values, mine = (
                groups.setdefault(run.seed if top and top.by_seed else None, []),
                one.get(key, _MISSING),
            )
            if (names := next((names for value, names in values if value == mine), None)) is None:
                values.append((mine, names := []))
            names.append(run.name)
        if clash := next((values for values in groups.values() if len(values) > 1), None):
            first = {run.name: run for run, _ in reversed(flat)}
            found.append(
                Difference(
                    key, clash, [_words(first[names[0]], key, value) for value, names in clash]
                )
            )
    return found


def check_identity(
    runs: Sequence[Run], allow: Iterable[str] = (), varied: Iterable[str] = ()
) -> list[Exempt]:
    """Refuse runs with forbidden differences; trainings of one arm must agree in varied keys, too.

    Args:
        allow: Identity keys (or their prefixes) that may differ.
        varied: Configuration keys that a study varies on purpose.

    Returns:
        Permitted differences.

    Raises:
        NotComparable: Keys differ without permission; the message has all of them.
    """
    allowed = list(allow)
    known = {key for run in runs for key in _comparable(run, _ARM)}
    for key in allowed:
        if not any(_covers(key, one) for one in known):
            raise NotComparable(
                f"--allow {key}: no such key. "
                f"Known: {', '.join(sorted({one.split('.')[0] for one in known}))}"
            )
    by_study = [key for one in varied for key in identity_keys(one)]
    arms = [
        [run for run in runs if run.trained and run.arm == arm]
        for arm in dict.fromkeys(run.arm for run in runs)
    ]
    # Values that depend on the training, such as the policy of a role, follow the seed.
    mixed = {
        one.key: one for arm in arms for one in differences(arm, _ARM) if len(one.values) < len(arm)
    }
    exceptions: list[Exempt] = []
    refused: list[Difference] = []
    for one in ({one.key: one for one in differences(runs)} | mixed).values():
        by_hand = any(_covers(key, one.key) for key in allowed)
        if by_hand or (one.key not in mixed and any(_covers(key, one.key) for key in by_study)):
            values = {run.id: _comparable(run, _ARM).get(one.key) for run in runs}
            exempt: Exempt = {
                "key": one.key,
                "why": "allowed" if by_hand else "varied",
                "values": values,
            }
            exceptions.append(exempt | {"said": one.said} if one.key in _PHASES else exempt)
        else:
            refused.append(one)
    if refused:
        raise NotComparable(_refusal(refused))
    return exceptions


def _refusal(refused: Sequence[Difference]) -> str:
    """Return all differences as text: one in a line, several grouped by subject."""
    for one in refused:
        if one.key == "kind":
            return other_kinds({str(value): names for value, names in one.values})
    refused = sorted(refused, key=lambda one: GROUPS.index(one.group))
    by_top = {one.top: [other.key for other in refused if other.top == one.top] for one in refused}
    advice = " ".join(
        f"--allow {found[0] if len(found) == 1 else top}" for top, found in by_top.items()
    )
    advice = f"If that is what you mean to compare, say {advice}"
    if any(
        one.key == "task_set.name" for one in refused
    ):  # nothing else can be equal for another task set
        refused = [one for one in refused if one.top != "task_set" or one.key == "task_set.name"]
    if len(refused) == 1:
        return f"{refused[0]}. {advice}"
    lines = [f"the runs differ in {len(refused)} keys that must be the same"]
    for group, found in groupby(refused, key=lambda one: one.group):
        lines += [f"{group}:", *(f"  {one}" for one in found)]
    return "\n".join([*lines, advice])


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
                "so it is unknown what its verdicts are of. Leave it out and run it again"
            )


def check_parity(runs: Sequence[Run], allow: Iterable[str] = ()) -> list[str]:
    """Check that the agents of several plugins are certified to be the same agent.

    Returns:
        Remarks for the output: uncertified agents, and agents that differ on purpose.

    Raises:
        NotComparable: Strict agents of several plugins lack a certificate, or have them for
            different scenarios or prompts, or one agent's source changed between runs.
    """
    remarks: list[str] = []
    permitted = "parity" in set(allow)
    for name, sources in _sources(runs).items():
        if len(sources) > 1 and not all(sources.values()):
            found = ", ".join(sorted(sources))
            if not permitted:
                raise NotComparable(
                    f"parity differs: the source of {name} changed between runs ({found}), "
                    "and not every one of them has a certificate that it is the same agent. "
                    "Leave out the runs of one, or say --allow parity"
                )
            remarks.append(f"The source of {name} changed between runs (allowed): {found}.")
    agents: dict[str, Certificate | None] = {}
    for run in runs:
        agents[run.record["agent"]] = agents.get(run.record["agent"]) or run.parity
    if len(agents) > 1:
        missing = [
            name for name, found in agents.items() if found is None and not _excused(name, runs)
        ]
        if missing and not permitted:
            raise NotComparable(
                f"parity differs: {missing[0]} ran without a parity certificate, so it is unknown "
                f"whether it is the same agent. Prove it with `harness parity {missing[0]}`, "
                "which counts for runs of the agent as it is installed now, or say --allow parity"
            )
        if missing:
            remarks.append(f"Not certified to be the same agent (allowed): {', '.join(missing)}.")
        programs = {run.record["agent"]: run.record["identity"].get("program") for run in runs}
        for part, program in product(
            ("prompts", "scenarios", "reference"), dict.fromkeys(programs.values())
        ):
            values = {
                name: found["fingerprint"].get(part)
                for name, found in agents.items()
                if found is not None and found["strict"] and programs[name] == program
            }
            if len(set(values.values())) > 1 and not permitted:
                one, first = next(iter(values.items()))
                two, second = next(
                    (name, value) for name, value in values.items() if value != first
                )
                raise NotComparable(
                    f"parity.{part} differs: {first} for {one}, {second} for {two}. "
                    "Certify both again with `harness parity`, or say --allow parity"
                )
        remarks += check_shadow(
            [run for run in runs if not is_idiomatic(run.record["agent"])], permitted
        )
    idiomatic = [
        name
        for name, found in agents.items()
        if (found is not None and not found["strict"]) or is_idiomatic(name)
    ]
    if idiomatic:
        remarks.append(
            f"Idiomatic, that is not the same agent on purpose: {', '.join(sorted(idiomatic))}. "
            "Differences are of framework and scaffolding together."
        )
    return remarks


def _sources(runs: Iterable[Run]) -> dict[str, dict[str, bool]]:
    """Return each agent's recorded source hashes, and whether each has a strict certificate."""
    found: dict[str, dict[str, bool]] = {}
    for run in runs:
        certificate, source = run.parity, run.record.get("agent_source")
        if not source and certificate is not None:
            source = certificate["fingerprint"].get("agent_source")
        if source:
            of = found.setdefault(run.record["agent"], {})
            of[source] = of.get(source, False) or bool(certificate and certificate["strict"])
    return found


def circumstances(runs: Sequence[Run]) -> list[str]:
    """Return remarks on conditions that may matter: code, library versions, machines."""
    remarks: list[str] = []
    codes = [run.record["commit"] for run in runs]
    commits = {code["hash"] if code else "unknown" for code in codes}
    if commits == {"unknown"}:
        installed = ", ".join(sorted({run.record["harness_version"] for run in runs}))
        remarks.append(f"The commit of the code is not known: harness {installed}, installed.")
    if len(commits) > 1:
        remarks.append(
            f"Runs were made by {len(commits)} commits: "
            f"{', '.join(sorted(one[:10] for one in commits))}."
        )
    if any(code["dirty"] for code in codes if code):
        remarks.append("Some runs were made with uncommitted changes in the source tree.")
    versions: dict[str, set[str]] = {}
    for run in runs:
        for name in {name for other in runs for name in other.record["versions"]}:
            versions.setdefault(name, set()).add(str(run.record["versions"].get(name)))
        # Only the frameworks of its agent: other agents need no such certificate.
        for name, installed in run.record["frameworks"].items():
            versions.setdefault(name, set()).add(installed)
    for name, found in sorted(versions.items()):
        if len(found) > 1:
            remarks.append(f"Versions of {name} differ: {', '.join(sorted(found))}.")
    machines, shared = _machines(runs)
    if len(machines) > 1:
        remarks.append(f"Machines differ, so times are not comparable: {'; '.join(machines)}.")
    if len(shared) > 1:
        ways = "; ".join(_sharing_text(*one) for one in shared)
        remarks.append(f"Machines were shared unequally, so times are not comparable: {ways}.")
    elif shared and shared[0][0] > 1:
        remarks.append(
            f"Machines were shared alike, {_sharing_text(*shared[0])}: "
            "times compare with each other, not with those of a run alone."
        )
    return remarks


def times_compare(runs: Sequence[Run]) -> bool:
    """Return whether all runs used machines of one kind, or equal shares of one."""
    return all(len(found) == 1 for found in _machines(runs))


def _machines(runs: Sequence[Run]) -> tuple[list[str], list[tuple[int, int]]]:
    """Return kinds of machines, and ways in which they were shared."""
    launches = [launch for run in runs for launch in run.record["launches"]]
    # Runs at once: 0 outside a study. Cores: 0 if an older record lacks them.
    ways = {(launch.get("runs_at_once", 0), launch.get("cores") or 0) for launch in launches}
    return sorted({_machine(run) for run in runs}), sorted(ways)


def _sharing_text(at_once: int, cores: int) -> str:
    text = f"{at_once} run{'s' * (at_once > 1)} at a time" if at_once else "outside a study"
    return f"{text}{with_cores(cores)}"


def _comparable(run: Run, more: Iterable[str] = ()) -> dict[str, Any]:
    flat = {"kind": run.record["kind"], "samples": 1, **flatten(run.record["identity"])}
    flat |= {key: run.record["config"].get(key) for key in more}
    if (
        run.record["kind"] == "train"
    ):  # rounding differs; the policy of an evaluation may be served on any machine
        flat["device"] = run.record["device"]
    return {
        key: value for key, value in flat.items() if value != {}
    }  # an option that is unset although other runs set some


def _covers(permission: str, key: str) -> bool:
    return key == permission or key.startswith(f"{permission}.")


def _words(run: Run, key: str, value: Any) -> str:
    """Return a value as text: a hash of questions with number and split, a long hash shortened."""
    if key in _PHASES and value is not _MISSING:
        phase, task = _PHASES[key][0], run.record["config"].get("task", {})
        count = run.record["tasks"]["train" if phase == "train" else "val"]
        return f"{count} questions of {task.get('name')}/{task.get(f'{phase}_split')} ({value[:8]})"
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{32,}", value):
        return value[:8]
    return _short(value)


def _short(value: object) -> str:
    if value is _MISSING:
        return "not set"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _some(names: Sequence[str]) -> str:
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 2 else " and ".join(names)


def _machine(run: Run) -> str:
    data = run.record["hardware"]
    gpus = f", {len(data['gpus'])} x {data['gpus'][0]}" if data.get("gpus") else ""
    return f"{data['processor']}, {data['cores']} cores{gpus}"


def _excused(name: str, runs: Sequence[Run]) -> bool:
    """Return whether an agent needs no certificate, or is the reference if it is not installed."""
    from harness.plugins import is_reference, registry

    if any(spec.name == name for spec in registry().specs("agent")) or is_idiomatic(name):
        return is_reference(name) or is_idiomatic(name)
    sources = {run.record.get("agent_source") or "" for run in runs if run.record["agent"] == name}
    held = {
        one.parity["fingerprint"].get("reference")
        for one in runs
        if one.parity and one.parity["strict"]
    }
    return bool(held) and (
        sources <= held or (sources == {""} and name.startswith("reference_"))
    )  # "": older records
