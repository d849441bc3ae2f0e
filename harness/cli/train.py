"""`harness train`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.api.parameters import without
from harness.cli import complete
from harness.cli.common import emit_json, progress_console, results
from harness.cli.logs import followed
from harness.util import start_trace
from harness.util.formatting import spoilt
from harness.util.parsing import dump_yaml

if TYPE_CHECKING:
    from harness.config import Config
    from harness.runs.folder import RunFolder

app = typer.Typer(add_completion=False)


@app.command()
def train(
    agent: Annotated[
        str | None, complete.agent("The agent to train, for example langgraph_sql.")
    ] = None,
    preset: complete.Preset = None,
    config: Annotated[
        Path | None, typer.Option(help="A YAML file, for example a run's config.yaml.")
    ] = None,
    settings: complete.Settings = None,
    task: Annotated[
        str | None, complete.task("The task set: pocket, spider, bird, files (your own), ...")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The policy: bundled, a folder, or a Hugging Face id (policy.path)."),
    ] = None,
    n_runners: Annotated[
        int | None, typer.Option(help="Runner processes (rollout.runners).")
    ] = None,
    store: complete.Store = None,
    agent_match: Annotated[
        str | None, typer.Option(help="Regular expression for the names of the roles to train.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of data order, sampling and optimizer.")
    ] = None,
    steps: complete.Steps = None,
    ci_fast: Annotated[
        bool,
        typer.Option("--one-step", "--ci-fast", help="Train for one step, on a few questions."),
    ] = False,
    ci: Annotated[
        bool, typer.Option("--twenty-steps", "--ci", help="Train for twenty steps.")
    ] = False,
    resume: Annotated[
        Path | None, typer.Option(help="A run folder to resume.", autocompletion=complete.runs)
    ] = None,
    without_parity: complete.WithoutParity = False,
    runs_dir: complete.NewIn = Path("runs"),
    trace_start: Annotated[
        Path | None,
        typer.Option(help="File for a Chrome trace of what each process did during the start."),
    ] = None,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the logs of all processes of the run.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved configuration and stop.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the run's record as JSON.")] = False,
) -> None:
    """Train an agent with GRPO, or another train.algorithm, and write a run folder."""
    given = without(locals(), "trace_start", "debug", "dry_run", "json_")
    from harness.api.training import Wanted

    training = Wanted(**given).asked()
    if dry_run and not training.finished:
        show_config(training.config, json_)
        return

    # The run's folder, which contains its logs, is created only after all checks.
    @contextmanager
    def during(folder: RunFolder) -> Iterator[None]:
        with followed(folder.logs) if debug else nullcontext():
            yield

    traced = trace_start if trace_start and not training.finished else None
    with start_trace.recorded(traced) if traced else nullcontext():
        run = training.carry_out(progress_console(), panel=not debug, during=during)
    if traced:
        progress_console().print(
            f"timeline of the start: {traced} (open it at https://ui.perfetto.dev)"
        )
    if json_:
        emit_json(run.record)
    else:
        results().print(run.summary)
    if not training.finished and spoilt(run.record["result"] or {}):
        raise typer.Exit(1)


def show_config(config: Config, as_json: bool) -> None:
    """Print the resolved configuration."""
    if as_json:
        emit_json(config.dump())
    else:
        results().out(dump_yaml(config.dump()), end="")
