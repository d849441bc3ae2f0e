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

    Exit status 1 if no call would be trained, 2 if the pattern matches no role of the agent.
    """
    from rich.table import Table

    from harness.parity.recorder import record_in_process
    from harness.plugins import agent_spec, program, program_of, trained_by
    from harness.plugins.mixtures import one_agent

    spec = agent_spec(one_agent(plugin))
    pattern = trained_by(plugin, agent_match)
    matched = matching_roles(spec.roles, pattern)
    scenarios = program(program_of(plugin)).scenarios
    episode = max(scenarios, key=lambda one: (one.name == EPISODE, len(one.replies))).name
    recording = record_in_process(plugin, [episode])[0]
    calls: list[dict[str, Any]] = []
    trained = 0
    for index, call in enumerate(recording.calls):
        # As in a training, a pattern may match a part of a role's name.
        is_trained = bool(re.search(pattern, call.role))
        trained += is_trained
        calls.append({"call": index, "role": call.role, "trained": is_trained})
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
        for row in calls:
            table.add_row(str(row["call"]), row["role"], "yes" if row["trained"] else "no")
        results().print(table)
        called = list(dict.fromkeys(row["role"] for row in calls if row["trained"]))
        roles = f": {', '.join(called)}" if called else ""
        results().print(f"{trained} of {len(calls)} calls would be trained{roles}")
        if uncalled := [role for role in matched if role not in called]:
            results().print(f"matched, but not called in this rollout: {', '.join(uncalled)}")
        for remark in remarks:
            progress_console().print(f"note: {remark}")
    if not trained:
        raise RunFailed(
            f"{pattern!r} matches {', '.join(matched)}, "
            f"but no call of the rollout: {recording.detail}"
        )


def matching_roles(roles: tuple[str, ...], pattern: str) -> list[str]:
    """Return the roles that a pattern trains.

    Raises:
        ConfigError: The pattern is no regular expression, or matches none of the roles.
    """
    try:
        matching = [role for role in roles if re.search(pattern, role)]
    except re.error as error:
        raise ConfigError(f"agent_match {pattern!r} is no regular expression: {error}") from error
    if not matching:
        hint = nearest(pattern, roles, ".", similarity=0.5)
        raise ConfigError(
            f"agent_match {pattern!r} matches no role{hint} Roles: {', '.join(roles)}"
        )
    return matching


def near_misses(roles: tuple[str, ...], pattern: str) -> list[str]:
    """Return remarks on roles that a pattern matches by accident, or misses only by letter case."""
    remarks: list[str] = []
    for role in roles:
        match = re.search(pattern, role)
        if match is None:
            if re.search(pattern, role, re.IGNORECASE):
                remarks.append(f"{pattern!r} would match {role!r} but for upper and lower case")
            continue
        # A match inside a word, as of `check` in `precheck`, is probably an accident.
        begins_with_word = re.match(r"\w", match.group() or " ")
        if match.start() and begins_with_word and role[match.start() - 1].isalnum():
            remarks.append(
                f"{pattern!r} also matches inside {role!r}; write '^{pattern}' to leave it out"
            )
    return remarks
