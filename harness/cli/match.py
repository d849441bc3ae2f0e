"""`harness match`: which calls of a rollout an `agent_match` would train."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from harness.cli import complete
from harness.cli.common import emit_json, progress_console, results
from harness.errors import ConfigError, RunFailed, nearest

app = typer.Typer(add_completion=False)
EPISODE = "never_approved"
"""Scripted episode in which every role calls; a program without it plays its longest one."""


@app.command()
def match(
    plugin: Annotated[str, typer.Argument(help="The agent.", autocompletion=complete.agents)],
    agent_match: Annotated[
        str | None,
        typer.Option(
            help="Regular expression, searched in role names as training does; by default the program's."
        ),
    ] = None,
    json_: complete.Json = False,
) -> None:
    """Run one scripted rollout and show which of its calls would be trained.

    Exit status 1 where no call would be, 2 where the pattern matches no role of the agent at all.
    """
    from rich.table import Table

    from harness.parity.recorder import record_in_process
    from harness.plugins import agent_spec, program, program_of, trained_by

    spec = agent_spec(plugin)
    pattern = trained_by(plugin, agent_match)
    matched = matching_roles(spec.roles, pattern)
    scenarios = program(program_of(plugin)).scenarios
    episode = max(scenarios, key=lambda one: (one.name == EPISODE, len(one.replies))).name
    recording = record_in_process(plugin, [episode])[0]
    calls = [
        {"call": index, "role": call.role, "trained": bool(re.search(pattern, call.role))}
        for index, call in enumerate(recording.calls)
    ]
    trained = sum(bool(call["trained"]) for call in calls)
    remarks = near_misses(spec.roles, pattern)
    if json_:
        emit_json(
            {
                "agent": plugin,
                "agent_match": pattern,
                "roles": matched,
                "calls": calls,
                "remarks": remarks,
            }
        )
    else:
        table = Table("call", "role", "trained")
        for call in calls:
            table.add_row(str(call["call"]), str(call["role"]), "yes" if call["trained"] else "no")
        results().print(table)
        results().print(f"{trained} of {len(calls)} calls would be trained: {', '.join(matched)}")
        for remark in remarks:
            progress_console().print(f"note: {remark}")
    if not trained:
        raise RunFailed(
            f"{pattern!r} matches {', '.join(matched)}, "
            f"but no call of the rollout: {recording.detail}"
        )


def matching_roles(roles: tuple[str, ...], pattern: str) -> list[str]:
    """The roles that a pattern trains.

    Raises:
        ConfigError: It is no regular expression, or matches none of the roles.
    """
    try:
        found = [role for role in roles if re.search(pattern, role)]
    except re.error as error:
        raise ConfigError(f"agent_match {pattern!r} is no regular expression: {error}") from error
    if not found:
        hint = nearest(pattern, roles, similarity=0.5)
        raise ConfigError(
            f"agent_match {pattern!r} matches no role{hint} Roles: {', '.join(roles)}"
        )
    return found


def near_misses(roles: tuple[str, ...], pattern: str) -> list[str]:
    """Remarks on roles that a pattern matches by accident, or would with other letters."""
    remarks: list[str] = []
    for role in roles:
        found: Any = re.search(pattern, role)
        if (
            found
            and found.start()
            and re.match(r"\w", found.group() or " ")
            and role[found.start() - 1].isalnum()
        ):
            remarks.append(
                f"{pattern!r} also matches inside {role!r}; write '^{pattern}' to leave it out"
            )
        elif not found and re.search(pattern, role, re.IGNORECASE):
            remarks.append(f"{pattern!r} would match {role!r} but for upper and lower case")
    return remarks
