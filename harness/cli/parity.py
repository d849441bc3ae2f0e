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
            min=0, help="Also play so many generated scenarios with each strict agent.", metavar="N"
        ),
    ] = 0,
    generator_seed: Annotated[int, typer.Option(help="Seed of the generated scenarios.")] = 0,
    json_: complete.Json = False,
    out: Annotated[
        Path | None, typer.Option(help="Also write the JSON document to this file.")
    ] = None,
) -> None:
    """Run agents and their reference over scripted episodes through the real gateway and compare all they send.

    Each episode is played alone and then all of them at once by the same agent.

    Strict agents must match byte for byte and get a certificate; idiomatic ones are measured.
    Exit status 1 where a strict agent differs.
    """
    names = _names(plugins or [], all_, program)
    from harness.parity.report import failures, play_generated, run_parity

    report = run_parity(names, _scenarios(names, scenario or []), progress_console().print)
    if generated:
        play_generated(report, generated, generator_seed, progress_console().print)
    if out is not None:
        out.write_text(json.dumps(report, indent=2, ensure_ascii=False), encoding="utf-8")
    emit_json(report) if json_ else _show(report)
    if generated and not json_:
        _show_generated(report)
    if failed := failures(report):
        raise RunFailed(f"not the same agent: {', '.join(failed)}")


def _show_generated(report: Mapping[str, Any]) -> None:
    """Print what generated scenarios found, with the small example where an agent differs."""
    console = results()
    for name, row in report["agents"].items():
        found = row.get("generated")
        if found is None:
            continue
        if not found["difference"]:
            console.print(f"{name}: same in {found['count']} generated scenarios")
            continue
        console.print(f"{name}: {found['found_in']} (seed {found['seed']}): {found['difference']}")
        console.print(f"Smallest example found, max_turns {found['max_turns']}:")
        for number, reply in enumerate(found["example"]):
            console.print(f"  reply {number}: {reply}")


def _names(named: list[str], everything: bool, only: str | None) -> list[str]:
    from harness.plugins import agent_spec, agents_of, program, program_of, registry

    programs = [spec.name for spec in registry().specs("program")]
    if only is not None and only not in programs:
        raise ConfigError(
            f"--program {only}: no program of that name. Installed: {', '.join(programs)}"
        )
    references = {program(one).reference for one in programs}
    if named and (everything or only is not None):
        raise ConfigError("name agents, or say --all or --program: not both")
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
    for name in named:
        agent_spec(name)
    compared = list(dict.fromkeys(name for name in named if name not in references))
    if not compared:
        others = ", ".join(
            name for name in agents_of(program_of(named[0])) if name not in references
        )
        hint = f"name one of {others}" if others else "there are none yet"
        raise ConfigError(f"{named[0]} is what other agents are compared with: {hint}")
    return compared


def _scenarios(agents: list[str], named: list[str]) -> list[str]:
    from harness.plugins import program, program_of

    programs = dict.fromkeys(map(program_of, agents))
    known = list(dict.fromkeys(one.name for name in programs for one in program(name).scenarios))
    for name in named:
        if name not in known:
            hint = nearest(name, known, f". There are: {', '.join(known)}")
            raise ConfigError(f"no scenario called {name!r}{hint}")
    return named


def _show(report: dict[str, Any]) -> None:
    from rich.table import Table

    from harness.parity.comparison import ACCEPTED

    console = results()
    everything = {
        name: row for name, row in report["agents"].items() if row["strict"] and "error" not in row
    }
    for program, scenarios in report["scenarios"].items():
        strict = {name: row for name, row in everything.items() if row["program"] == program}
        if not strict:
            continue
        table = Table(f"scenario of {program}", *strict)
        for one in scenarios:
            table.add_row(one, *(_cell(one, row["failed"]) for row in strict.values()))
        table.add_section()
        table.add_row(
            "certificate", *((row.get("certificate") or "none")[:12] for row in strict.values())
        )
        console.print(_whole(table))
        known = report["known_scenarios"][program]
        if known > len(scenarios):
            console.print(
                f"No certificate: {len(scenarios)} of {known} scenarios were played. "
                f"To play all: harness parity {' '.join(strict)}"
            )
        for name, row in strict.items():
            _show_differences(name, row, len(scenarios))
        met = sorted({name for row in strict.values() for name in row.get("accepted", [])})
        for name in met:
            users = [agent for agent, row in strict.items() if name in row.get("accepted", [])]
            console.print(f"accepted: {ACCEPTED[name]} ({', '.join(users)})")
    idiomatic = {
        name: row
        for name, row in report["agents"].items()
        if not row["strict"] and "error" not in row
    }
    if idiomatic:
        table = Table("measured against the reference", *idiomatic)
        rows: dict[str, Callable[[dict[str, Any]], str]] = {
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
        for label, cell in rows.items():
            table.add_row(label, *map(cell, idiomatic.values()))
        console.print(_whole(table))
    for name, row in report["agents"].items():
        if "error" in row:
            console.print(f"{name}: {row['error']}")


def _show_differences(name: str, row: Mapping[str, Any], scenarios: int) -> None:
    """Print the first differences of a strict agent to its reference."""
    console = results()
    found = _differences(row.get("mismatches", []), row.get("calls_compared", 0), scenarios)
    for text in found[:SHOWN]:
        console.print(f"{name}: {text}")
    if len(found) > SHOWN:
        console.print(f"{name}: and {len(found) - SHOWN} more differences (--json shows all)")


def _whole(table: Table) -> Table:
    """Heads that are too long are broken, not cut: beginnings of names are alike."""
    for column in table.columns:
        column.overflow = "fold"
    return table


def _differences(mismatches: Sequence[Mapping[str, str]], calls: int, scenarios: int) -> list[str]:
    """Return a line for each difference; calls or scenarios with the same one share a line."""
    same: dict[tuple[object, ...], list[Mapping[str, str]]] = {}
    for one in mismatches:
        together = one["scenario"].endswith("(together)")
        same.setdefault(
            (_CALL.sub("", one["place"]), one["expected"], one["got"], together), []
        ).append(one)
    lines = []
    for (what, *_), found in same.items():
        first = found[0]
        where = f"{first['scenario']}: {first['place']}"
        kind, of = ("scenario", scenarios) if what == first["place"] else ("call", calls)
        if len(found) == of > 1:
            where = f"in every {kind}: {what}"
        elif len(found) > 1:
            where = f"in {len(found)} of {of} {kind}s, first in {where}"
        lines.append(f"{where}: expected {first['expected']}, got {first['got']}")
    return lines


def _cell(scenario: str, failed: list[str]) -> str:
    if scenario in failed:
        return "differs"
    return "differs together" if f"{scenario} (together)" in failed else "same"


def _ratio(mine: int, base: int) -> str:
    return f"{mine} for {base} ({mine / base:.2f}x)" if base else f"{mine} for {base}"
