"""Check task sets other than `files` for `harness data check`: questions, gold and tools."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict, dataclass

import typer

from harness.cli.common import emit_json, say
from harness.config import Config
from harness.contracts.environments import Tool
from harness.contracts.tasks import TaskSet
from harness.plugins import environment, environment_of, make, task_set_spec
from harness.records import Task
from harness.util.formatting import shortened
from harness.util.json_schema import SchemaFault, check_schema
from harness_sql.cli.places import places
from harness_sql.cli.progress import progress_bar
from harness_sql.rewards.gold import has_query
from harness_sql.sqlite.environment import database_of
from harness_sql.tasks.files.checking import Progress, gold_error

_SHOWN = 100
"""Number of description characters shown on a line."""


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool of some tasks.

    Attributes:
        problem: A description of the tool's problem, or an empty string.
    """

    name: str
    description: str
    arguments: tuple[str, ...]
    tasks: int
    problem: str


@dataclass(frozen=True, slots=True)
class Offer:
    """Questions of the splits that a training reads, and the tools of their agents.

    Attributes:
        gold_queries: Number of gold queries, all of which were executed.
        gold_failed: Ids of tasks with a failing gold query, by its error.
    """

    ok: bool
    counts: dict[str, int]
    without_tools: int
    tools: tuple[OfferedTool, ...]
    gold_queries: int
    gold_failed: dict[str, list[str]]


def offered(config: Config, progress: Progress) -> Offer:
    """Load the splits of a configuration's task set, check every tool and run each gold query.

    Raises:
        TaskSetError: They do not load.
    """
    task_set: TaskSet = make(task_set_spec(config.task.name), config.task.options, "task.options")
    where, limits = environment(environment_of(config.task.name)), config.sandbox.model_dump()
    counts: Counter[str] = Counter()
    seen: dict[str, tuple[Tool, int]] = {}
    none = queries = 0
    failed: dict[str, list[str]] = {}
    splits = dict.fromkeys((config.task.train_split, config.task.val_split))
    tasks: list[tuple[str, Task]] = []
    for split in splits:
        for task in task_set.load(split):
            tasks.append((split, task))
    for number, (split, task) in enumerate(tasks, 1):
        counts[split] += 1
        tools = where.tools_for(where.payload(task, limits))
        none += not tools
        for tool in tools:
            # Tools of tasks with the same definition are one tool, which is checked once.
            key = str(tool.definition)
            seen[key] = tool, seen.get(key, (tool, 0))[1] + 1
        if has_query(task):
            queries += 1
            if error := gold_error(database_of(task), task.gold):
                failed.setdefault(error, []).append(task.id)
        progress("running the gold queries", number, len(tasks))
    offers: list[OfferedTool] = []
    ok = not failed
    for tool, count in seen.values():
        arguments = tuple(tool.parameters.get("properties", ()))
        problem = problem_of(tool)
        ok = ok and not problem
        offers.append(OfferedTool(tool.name, tool.description, arguments, count, problem))
    return Offer(ok, dict(counts), none, tuple(offers), queries, failed)


def problem_of(tool: Tool) -> str:
    """Return why servers or frameworks would reject a tool's definition, or an empty string."""
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", tool.name):
        return "its name is not 1 to 64 letters, digits, _ and -"
    if tool.parameters.get("type") != "object":
        return f"its arguments are of type {tool.parameters.get('type')!r}, not an object"
    try:
        check_schema(tool.parameters)
    except SchemaFault as fault:
        return f"its schema {fault}"
    return "" if tool.description.strip() else "it has no description"


def check_tools(config: Config, as_json: bool) -> None:
    """Print the tools, one line each.

    Raises:
        typer.Exit: A tool is invalid or a gold query fails; status 1.
        TaskSetError: The tasks do not load.
    """
    with progress_bar() as progress:
        offer = offered(config, progress)
    if as_json:
        emit_json(asdict(offer), indent=None)
    else:
        _print(config, offer)
    if not offer.ok:
        raise typer.Exit(1)


def _print(config: Config, offer: Offer) -> None:
    counts = ", ".join(f"{split} {count:,}" for split, count in offer.counts.items())
    say(f"{config.task.name}: {counts} questions")
    for tool in offer.tools:
        summary = shortened(" ".join(tool.description.split()), _SHOWN, "…")
        say(
            f"tool {tool.name}({', '.join(tool.arguments)}), of {tool.tasks:,} questions: {summary}"
        )
        if tool.problem:
            say(f"broken: tool {tool.name}: {tool.problem}")
    for error, ids in offer.gold_failed.items():
        say(f"broken: gold fails: {places(ids)}: {error}")
    if offer.gold_queries and not offer.gold_failed:
        say(f"gold queries: {offer.gold_queries:,}, and each of them runs")
    if offer.without_tools:
        say(f"without any tool: {offer.without_tools:,} questions")
    say("ok" if offer.ok else "NOT ok")
