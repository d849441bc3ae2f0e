"""Parity of several agents at once: recorded, compared, certified, and reported as plain data."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from harness.errors import PluginError, UserError
from harness.parity.certificate import certificate_for, write_certificate
from harness.parity.comparison import Deviation, Similarity, compare, measure
from harness.parity.generated import search_in_process
from harness.parity.recorder import Recording, record_in_process
from harness.plugins import agent_spec, is_reference, program, program_of

LEFT_OUT = "HARNESS_WITHOUT_PARITY"
"""Environment variable with the effect of `--without-parity` on every command."""


def uncertified(agents: Iterable[str]) -> list[str]:
    """Return the strict agents without a valid certificate, each once; references need none."""
    missing = []
    for name in dict.fromkeys(agents):
        if is_reference(name) or not agent_spec(name).strict:
            continue
        if certificate_for(name) is None:
            missing.append(name)
    return missing


def certify(agents: Iterable[str], say: Callable[[str], None], *, leave: bool = False) -> None:
    """Make the certificates that a comparison will ask for, as `harness parity` does.

    Args:
        leave: Make none; `HARNESS_WITHOUT_PARITY=1` has the same effect.

    Raises:
        UserError: An agent does not do what its reference does, or cannot be recorded.
    """
    if leave or os.environ.get(LEFT_OUT, "").strip().lower() in ("1", "true", "yes"):
        return
    missing = uncertified(agents)
    if not missing:
        return
    say(
        f"no parity certificate for {', '.join(missing)}: creating it first, from scripted episodes"
    )
    failed = failures(run_parity(missing, []))
    if failed:
        name, *others = failed
        more = f" (and so do {', '.join(others)})" if others else ""
        raise UserError(
            f"{name} fails parity{more}, so a comparison would be refused "
            f"after all that time: {failed[name][:400]}. "
            f"`harness parity {' '.join(failed)}` shows all; --without-parity starts anyway"
        )


def run_parity(
    names: list[str], scenarios: list[str], say: Any = lambda text: None
) -> dict[str, Any]:
    """Record agents and their references, compare them, store certificates, return the report."""

    def recorded(name: str) -> list[Recording] | PluginError:
        began = time.monotonic()
        try:
            recordings = record_in_process(name, scenarios)
        except PluginError as error:
            say(f"{name}: {error}")
            return error
        say(f"{name}: {len(recordings)} episodes in {time.monotonic() - began:.1f} s")
        return recordings

    # Two at once: each starts a gateway and a model, and more would slow each other down.
    with ThreadPoolExecutor(2) as pool:
        references = dict.fromkeys(program(program_of(name)).reference for name in names)
        wanted = [*references, *names]
        everything = dict(zip(wanted, pool.map(recorded, wanted), strict=True))
    agents: dict[str, object] = {}
    for name in names:
        reference = everything[program(program_of(name)).reference]
        if isinstance(reference, PluginError):
            raise reference
        spec, recordings = agent_spec(name), everything[name]
        described = {"strict": spec.strict, "program": program_of(name)}
        if isinstance(recordings, PluginError):
            agents[name] = {**described, "passed": False, "error": str(recordings)}
            continue
        judge = compare if spec.strict else measure
        result: Similarity | Deviation = judge(name, recordings, reference)
        passed = getattr(result, "passed", None)
        # A certificate covers all scenarios, so make none for a selection.
        certificate = None if scenarios else write_certificate(name, result)
        hashed = certificate["hash"] if certificate else None
        agents[name] = {**described, "passed": passed, **asdict(result), "certificate": hashed}
    report: dict[str, Any] = {
        "scenario_set": {},
        "scenarios": {},
        "known_scenarios": {},
        "agents": agents,
    }
    for program_name in dict.fromkeys(map(program_of, names)):
        of_program = program(program_name)
        every_scenario = [scenario.name for scenario in of_program.scenarios]
        played = [name for name in every_scenario if not scenarios or name in scenarios]
        report["scenario_set"][program_name] = of_program.scenarios_hash
        report["scenarios"][program_name] = played
        report["known_scenarios"][program_name] = len(every_scenario)
    return report


def play_generated(report: dict[str, Any], count: int, seed: int, say: Any) -> None:
    """Play generated scenarios with the report's strict agents and add the results to its rows."""
    for name, row in report["agents"].items():
        if not row["strict"] or "error" in row:
            continue
        began = time.monotonic()
        generated = search_in_process(name, count, seed)
        row["generated"] = asdict(generated)
        if not generated.passed:
            row["passed"] = False
        say(f"{name}: {generated.count} generated scenarios in {time.monotonic() - began:.1f} s")


def failures(report: Mapping[str, Any]) -> dict[str, str]:
    """Return why strict agents of a report failed, by agent: its error or the first difference."""
    reasons = {}
    for name, row in report["agents"].items():
        # An agent that is only measured has `passed: None`.
        if row["passed"] is False:
            reasons[name] = row.get("error") or _first_failure(row)
    return reasons


def _first_failure(row: Mapping[str, Any]) -> str:
    if row["mismatches"]:
        return difference_text(row["mismatches"][0])
    difference: str = row["generated"]["difference"]
    return difference


def difference_text(one: Mapping[str, str]) -> str:
    """Return one difference of a report in one line."""
    return f"{one['scenario']}: {one['place']}: expected {one['expected']}, got {one['got']}"
