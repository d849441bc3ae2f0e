"""`harness parity`: prove that plugins run the same agent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli import complete
from harness.cli.common import emit_json, progress_console, results
from harness.errors import ConfigError, RunFailed, how_to_install, nearest

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(add_completion=False)
SHOWN = 5
"""Differences shown of one agent."""
_CALL = re.compile(r"call \d+ \([^)]*\) ")


@app.command()
def parity(
    plugins: Annotated[
        list[str] | None,
        typer.Argument(help="Agents by name.", show_default=False, autocompletion=complete.agents),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every installed agent.")] = False,
    program: Annotated[
        str | None, typer.Option(help="Instead of names: every agent of this program.")
    ] = None,
    scenario: Annotated[
        list[str] | None,
        typer.Option(help="Only this scenario; repeatable. Writes no certificate."),
    ] = None,
    generated: Annotated[
        int,
        typer.Option(
            min=0,
            help="Also play this many generated scenarios with each strict agent.",
            metavar="N",
        ),
    ] = 0,
    generator_seed: Annotated[int, typer.Option(help="Seed of the generated scenarios.")] = 0,
    json_: complete.Json = False,
    out: Annotated[
        Path | None, typer.Option(help="Also write the JSON document to this file.")
    ] = None,
) -> None:
    """Run agents on scripted episodes and compare their requests with those of their reference.

    Each agent plays every episode alone, then all of them concurrently.

    Strict agents must match byte for byte and get a certificate; idiomatic ones are measured.
    Exit status 1 if a strict agent differs.
    """
    names = _names(plugins or [], all_, program)
    from harness.parity.report import failures, play_generated, run_parity
    from harness.runs.output import write_output

    report = run_parity(names, _scenarios(names, scenario or []), progress_console().print)
    if generated:
        play_generated(report, generated, generator_seed, progress_console().print)
    if out is not None:
        write_output(out, json.dumps(report, indent=2, ensure_ascii=False))
    emit_json(report) if json_ else _show(report)
    if generated and not json_:
        _show_generated(report)
    if failed := failures(report):
        raise RunFailed(f"not the same agent: {', '.join(failed)}")


def _show_generated(report: Mapping[str, Any]) -> None:
    """Print what generated scenarios found, with the small example where an agent differs."""
    console = results()
    for name, row in report["agents"].items():
        search = row.get("generated")
        if search is None:
            continue
        if not search["difference"]:
            console.print(f"{name}: same in {search['count']} generated scenarios")
            continue
        place = f"{search['found_in']} (seed {search['seed']})"
        console.print(f"{name}: {place}: {search['difference']}")
        console.print(f"Smallest example found, max_turns {search['max_turns']}:")
        for number, reply in enumerate(search["example"]):
            console.print(f"  reply {number}: {reply}")


def _names(named: list[str], everything: bool, only: str | None) -> list[str]:
    from harness.plugins import agent_spec, agents_of, program, program_of, registry
    from harness.plugins.mixtures import one_agent

    programs = [spec.name for spec in registry().specs("program")]
    if only is not None and only not in programs:
        raise ConfigError(
            f"--program {only}: no program of that name. Installed: {', '.join(programs)}"
        )
    references = {program(name).reference for name in programs}
    if named and (everything or only is not None):
        raise ConfigError("give either agents, or --all or --program, not both")
    if everything or only is not None:
        named = agents_of(only)
    if not named and everything:
        raise ConfigError(
            f"no agent is installed. "
            f"To install those that come with harness: {how_to_install('plugins')}"
        )
    if not named:
        raise ConfigError(
            "no agents are given. Name some, or pass --all or --program. "
            "Example: harness parity crewai_sql"
        )
    # Refuse unknown names first: recording an agent takes long.
    for name in named:
        agent_spec(one_agent(name))
    compared = [name for name in dict.fromkeys(named) if name not in references]
    if not compared:
        others = [name for name in agents_of(program_of(named[0])) if name not in references]
        hint = f"name one of {', '.join(others)}" if others else "there are none yet"
        raise ConfigError(f"{named[0]} is what other agents are compared with: {hint}")
    return compared


def _scenarios(agents: list[str], named: list[str]) -> list[str]:
    from harness.plugins import program, program_of

    # Several programs may have a scenario of the same name; list it once.
    scenarios: dict[str, None] = {}
    for program_name in dict.fromkeys(map(program_of, agents)):
        for scenario in program(program_name).scenarios:
            scenarios[scenario.name] = None
    for name in named:
        if name not in scenarios:
            hint = nearest(name, scenarios, f". There are: {', '.join(scenarios)}")
            raise ConfigError(f"no scenario called {name!r}{hint}")
    return named


def _show(report: dict[str, Any]) -> None:
    strict: dict[str, dict[str, dict[str, Any]]] = {}
    idiomatic: dict[str, dict[str, Any]] = {}
    broken: dict[str, str] = {}
    # Only strict agents that work are compared by scenario.
    for name, row in report["agents"].items():
        if "error" in row:
            broken[name] = row["error"]
        elif row["strict"]:
            strict.setdefault(row["program"], {})[name] = row
        else:
            idiomatic[name] = row
    for program, scenarios in report["scenarios"].items():
        if program in strict:
            _show_strict(program, strict[program], scenarios, report["known_scenarios"][program])
    if idiomatic:
        _show_idiomatic(idiomatic)
    for name, error in broken.items():
        results().print(f"{name}: {error}")


def _show_strict(
    program: str, rows: Mapping[str, Mapping[str, Any]], scenarios: Sequence[str], existing: int
) -> None:
    """Print the scenarios of a program's strict agents, their differences, and what was accepted.

    Args:
        scenarios: Those that were played, of so many `existing` ones.
    """
    from rich.table import Table

    from harness.parity.comparison import ACCEPTED

    console = results()
    table = Table(f"scenario of {program}", *rows)
    for scenario in scenarios:
        cells = [_cell(scenario, row["failed"]) for row in rows.values()]
        table.add_row(scenario, *cells)
    table.add_section()
    certificates: list[str] = []
    for row in rows.values():
        # Enough of the hash to recognize it in a run's record.
        certificate = row.get("certificate") or "none"
        certificates.append(certificate[:12])
    table.add_row("certificate", *certificates)
    console.print(_whole(table))
    if existing > len(scenarios):
        console.print(
            f"No certificate: {len(scenarios)} of {existing} scenarios were played. "
            f"To play all: harness parity {' '.join(rows)}"
        )
    users: dict[str, list[str]] = {}
    for name, row in rows.items():
        _show_differences(name, row, len(scenarios))
        for accepted in row.get("accepted", []):
            users.setdefault(accepted, []).append(name)
    for accepted, names in sorted(users.items()):
        console.print(f"accepted: {ACCEPTED[accepted]} ({', '.join(names)})")


def _show_idiomatic(rows: Mapping[str, dict[str, Any]]) -> None:
    """Print how far idiomatic agents are from the reference."""
    from rich.table import Table

    table = Table("measured against the reference", *rows)
    cells: dict[str, Callable[[dict[str, Any]], str]] = {
        "calls": lambda row: _ratio(*row["calls"]),
        "prompt characters": lambda row: _ratio(*row["prompt_chars"]),
        "roles": lambda row: ", ".join(row["roles"]),
        "injected parameters": lambda row: ", ".join(row["injected"]) or "none",
        "same tool calls": lambda row: "{} of {}".format(*row["same_tool_calls"]),
        "same answer": lambda row: "{} of {}".format(*row["same_answer"]),
        "other outcomes": lambda row: "\n".join(row["other_outcomes"]) or "none",
        "changed when all are played together": lambda row: (
            "\n".join(row["changed_together"]) or "none"
        ),
    }
    for label, cell in cells.items():
        table.add_row(label, *map(cell, rows.values()))
    results().print(_whole(table))


def _show_differences(name: str, row: Mapping[str, Any], scenarios: int) -> None:
    """Print the first differences of a strict agent to its reference."""
    console = results()
    lines = _differences(row.get("mismatches", []), row.get("calls_compared", 0), scenarios)
    for line in lines[:SHOWN]:
        console.print(f"{name}: {line}")
    if len(lines) > SHOWN:
        console.print(f"{name}: and {len(lines) - SHOWN} more differences (--json shows all)")


def _whole(table: Table) -> Table:
    """Heads that are too long are broken, not cut: beginnings of names are alike."""
    for column in table.columns:
        column.overflow = "fold"
    return table


def _differences(mismatches: Sequence[Mapping[str, str]], calls: int, scenarios: int) -> list[str]:
    """Return a line for each difference; calls or scenarios with the same one share a line."""
    groups: dict[tuple[str, str, str, bool], list[Mapping[str, str]]] = {}
    for mismatch in mismatches:
        together = mismatch["scenario"].endswith("(together)")
        # Without its call: a parameter that an agent always sends differs in each of its calls.
        what = _CALL.sub("", mismatch["place"])
        same = (what, mismatch["expected"], mismatch["got"], together)
        groups.setdefault(same, []).append(mismatch)
    lines = []
    for (what, *_), group in groups.items():
        first = group[0]
        where = f"{first['scenario']}: {first['place']}"
        kind, total = ("scenario", scenarios) if what == first["place"] else ("call", calls)
        if len(group) == total > 1:
            where = f"in every {kind}: {what}"
        elif len(group) > 1:
            where = f"in {len(group)} of {total} {kind}s, first in {where}"
        lines.append(f"{where}: expected {first['expected']}, got {first['got']}")
    return lines


def _cell(scenario: str, failed: list[str]) -> str:
    if scenario in failed:
        return "differs"
    return "differs together" if f"{scenario} (together)" in failed else "same"


def _ratio(mine: int, base: int) -> str:
    return f"{mine} for {base} ({mine / base:.2f}x)" if base else f"{mine} for {base}"
