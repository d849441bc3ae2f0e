"""`harness run`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.api.parameters import named_endpoint
from harness.cli import complete
from harness.cli.common import emit_json, progress_console, results
from harness.cli.serve import answered, patient, preset_of, roles_answered, to_serve
from harness.config import load_config
from harness.errors import RunFailed, UserError
from harness.records import Attempt, Task
from harness.util.formatting import duration

if TYPE_CHECKING:
    from harness.contracts.toolbox import Agent
    from harness.gateway.client import GatewayControl
    from harness.rollout.request import RolloutRequest
    from harness.util.endpoints import Endpoint

PROGRESS_S = 10.0
"""Seconds between two lines of progress."""

app = typer.Typer(add_completion=False)


@app.command()
def run(
    question: Annotated[str, typer.Option(help="The question.")],
    db: Annotated[Path, typer.Option(help="A SQLite database.")],
    endpoint: complete.Endpoint = None,
    model: complete.Model = None,
    agent: Annotated[
        str | None, complete.agent("The agent; by default the run's, or langgraph_sql.")
    ] = None,
    api_key_env: complete.KeyVariable = "OPENAI_API_KEY",
    task: Annotated[
        str | None,
        complete.task("The task set with the format of the schema; by default a run's, or pocket."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file.")] = None,
    set_: complete.Settings = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the attempt as JSON.")] = False,
) -> None:
    """Ask one question about a database and show every turn.

    The prompt is that of `harness eval`, with the schema in the format of the task set.
    """
    from harness.cli.dev import tree

    if not db.is_file():
        raise UserError(f"no database at {db}; --db takes a SQLite file")
    here = to_serve(model, endpoint)
    preset, file = preset_of(here, task)
    overrides = [f"task.name={task}"] if task is not None else []
    overrides += set_ or []
    resolved = load_config(preset, config or file, overrides, agent=agent)
    from harness.plugins import agent_spec, checked_options, environment_of, load, task_set_spec
    from harness.policies.roles import check
    from harness.rollout.request import RolloutRequest
    from harness_sql.sqlite.environment import DATABASE
    from harness_sql.tasks.schemas import schema_of_database

    if environment_of(resolved.task.name) != "sql":
        raise UserError(
            f"task set {resolved.task.name!r} is not about one SQLite database. "
            "Name one that is: --task pocket"
        )
    # Options are checked before a server is looked for.
    checked_options(task_set_spec(resolved.task.name), resolved.task.options, "task.options")
    answers = here or named_endpoint(endpoint, model, api_key_env)
    made = load(agent_spec(resolved.agent))()
    schema = schema_of_database(db, resolved)
    asked = Task(
        "question", resolved.task.name, "", question, "", db.stem, data={DATABASE: str(db)}
    )
    check(resolved)
    resolved = patient(resolved, here, set_)
    request = RolloutRequest.build(asked, {"schema": schema}, resolved, "val")

    with roles_answered(resolved) as roles, answered(answers, resolved) as served:
        attempt = asyncio.run(_attempt(made, request, served, roles))
    if json_:
        emit_json(asdict(attempt))
    else:
        results().print(tree(attempt), markup=True, soft_wrap=False)
    if attempt.outcome != "ok":
        raise RunFailed(f"{attempt.outcome}: {attempt.detail}")


async def _attempt(
    agent: Agent, request: RolloutRequest, endpoint: Endpoint, roles: Mapping[str, Endpoint]
) -> Attempt:
    """Run one attempt through its own gateway."""
    import httpx

    from harness.gateway.server import GatewayServer
    from harness.rollout.host import run_attempt

    with GatewayServer() as gateway:
        async with (
            gateway.control() as control,
            httpx.AsyncClient(timeout=None, trust_env=False) as http,
        ):
            await control.point(endpoint, roles)
            progress = asyncio.create_task(_show_progress(control))
            try:
                return await run_attempt(
                    agent, request, "question", "1", control, gateway.key, endpoint.model, http
                )
            finally:
                progress.cancel()


async def _show_progress(control: GatewayControl) -> None:
    """Print on stderr, at intervals, how many calls the model has answered so far."""
    began = time.monotonic()
    while True:
        await asyncio.sleep(PROGRESS_S)
        answered = (await control.stats())["transitions"]
        waited = duration(time.monotonic() - began)
        progress_console().print(f"{answered} model calls answered after {waited}")
