"""Check that the agents of several plugins are certified to be the same agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

from harness.compare.shadow_results import check_shadow, is_idiomatic
from harness.errors import NotComparable
from harness.runs.schema import Certificate
from harness.util.formatting import members

if TYPE_CHECKING:
    from harness.runs.reading import Run

Certificates = Mapping[str, Certificate | None]
"""The certificate of every agent, None without one."""


def check_parity(runs: Sequence[Run], allow: Iterable[str] = ()) -> list[str]:
    """Check that the agents of several plugins are certified to be the same agent.

    Returns:
        Remarks for the output: uncertified agents, and agents that differ on purpose.

    Raises:
        NotComparable: Strict agents of several plugins lack a certificate, or have them for
            different scenarios or prompts, or one agent's source changed between runs.
    """
    permitted = "parity" in set(allow)
    remarks = _check_sources(runs, permitted)
    agents: dict[str, Certificate | None] = {}
    for run in runs:
        name = run.record["agent"]
        agents[name] = agents.get(name) or run.parity
    # Runs of a single agent are the same agent without any proof.
    if len(agents) > 1:
        remarks += _check_certified(agents, runs, permitted)
        if not permitted:
            _check_same_scenarios(agents, runs)
        remarks += check_shadow(runs, permitted)
    idiomatic = []
    for name, certificate in agents.items():
        if (certificate is not None and not certificate["strict"]) or is_idiomatic(name):
            idiomatic.append(name)
    if idiomatic:
        remarks.append(
            f"Idiomatic, that is not the same agent on purpose: {', '.join(sorted(idiomatic))}. "
            "Differences are of framework and scaffolding together."
        )
    mixtures = [name for name in agents if len(members(name)) > 1]
    if mixtures:
        remarks.append(
            f"Trained in several agents: {'; '.join(sorted(mixtures))}. Each agent answered a part "
            "of the validation. Compare evaluations in one agent (`harness eval RUN --agent NAME`)."
        )
    return remarks


def _check_sources(runs: Iterable[Run], permitted: bool) -> list[str]:
    """Refuse an agent that changed between runs, unless every version of it is certified."""
    remarks = []
    for name, sources in _sources(runs).items():
        # Two certified versions send the same requests, so they are the same agent after all.
        if len(sources) < 2 or all(sources.values()):
            continue
        hashes = ", ".join(sorted(sources))
        if not permitted:
            raise NotComparable(
                f"parity differs: the source of {name} changed between runs ({hashes}), "
                "and not every one of them has a certificate that it is the same agent. "
                "Leave out the runs of one, or say --allow parity"
            )
        remarks.append(f"The source of {name} changed between runs (allowed): {hashes}.")
    return remarks


def _check_certified(agents: Certificates, runs: Sequence[Run], permitted: bool) -> list[str]:
    """Refuse agents without a certificate, except those that need none."""
    missing = []
    for name, certificate in agents.items():
        if certificate is None and not _excused(name, runs):
            missing.append(name)
    if not missing:
        return []
    if not permitted:
        raise NotComparable(
            f"parity differs: {missing[0]} ran without a parity certificate, so it is unknown "
            f"whether it is the same agent. Prove it with `harness parity {missing[0]}`, "
            "which counts for runs of the agent as it is installed now, or say --allow parity"
        )
    return [f"Not certified to be the same agent (allowed): {', '.join(missing)}."]


def _check_same_scenarios(agents: Certificates, runs: Sequence[Run]) -> None:
    """Refuse certificates for other prompts, scenarios or another reference."""
    programs: dict[str, str | None] = {}
    for run in runs:
        programs[run.record["agent"]] = run.record["identity"].get("program")
    # Agents of different programs have different prompts on purpose, so only those of one program
    # are compared with each other.
    parts = ("prompts", "scenarios", "reference")
    for part, program in product(parts, dict.fromkeys(programs.values())):
        values: dict[str, object] = {}
        for name, certificate in agents.items():
            if certificate is None or not certificate["strict"] or programs[name] != program:
                continue
            values[name] = certificate["fingerprint"].get(part)
        _refuse_different(part, values)


def _refuse_different(part: str, values: Mapping[str, object]) -> None:
    """Refuse agents with different values of one part of their certificates."""
    if not values:
        return
    first_name, first = next(iter(values.items()))
    for name, value in values.items():
        if value != first:
            raise NotComparable(
                f"parity.{part} differs: {first} for {first_name}, {value} for {name}. "
                "Certify both again with `harness parity`, or say --allow parity"
            )


def _sources(runs: Iterable[Run]) -> dict[str, dict[str, bool]]:
    """Return each agent's recorded source hashes, and whether each has a strict certificate."""
    by_agent: dict[str, dict[str, bool]] = {}
    for run in runs:
        certificate, source = run.parity, run.record.get("agent_source")
        if not source and certificate is not None:
            source = certificate["fingerprint"].get("agent_source")
        if source:
            certified = by_agent.setdefault(run.record["agent"], {})
            strict = bool(certificate and certificate["strict"])
            certified[source] = certified.get(source, False) or strict
    return by_agent


def _excused(name: str, runs: Sequence[Run]) -> bool:
    """Return whether an agent needs no certificate, or is the reference if it is not installed."""
    from harness.plugins import is_reference, registry

    installed = any(spec.name == name for spec in registry().specs("agent"))
    if installed or is_idiomatic(name):
        return is_reference(name) or is_idiomatic(name)
    # The registry cannot tell what an agent is that is not installed. It is the reference if the
    # certificates of the other agents were made against exactly its source.
    sources: set[str] = set()
    references: set[str | None] = set()
    for run in runs:
        if run.record["agent"] == name:
            sources.add(run.record.get("agent_source") or "")
        if run.parity and run.parity["strict"]:
            references.add(run.parity["fingerprint"].get("reference"))
    if not references:
        return False
    # Older records have no source; of them only the name is left.
    older = sources == {""} and name.startswith("reference_")
    return sources <= references or older
