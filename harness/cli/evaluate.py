"""`harness eval`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.api.parameters import without
from harness.cli import complete
from harness.cli.common import emit_json, progress_console, results
from harness.errors import NotComparable, UserError
from harness.util.formatting import spoilt

if TYPE_CHECKING:
    from harness.api.evaluating import Evaluation
    from harness.api.loaded import LoadedRun
    from harness.compare.costs import Price

app = typer.Typer(add_completion=False)


@app.command()
def evaluate(
    run: Annotated[
        Path | None,
        typer.Argument(
            help="A run folder: its newest checkpoint is measured.", autocompletion=complete.runs
        ),
    ] = None,
    agent: Annotated[
        str | None, complete.agent("The agent; by default the run's, or langgraph_sql.")
    ] = None,
    agents: complete.Agents = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            help="An OpenAI-compatible URL, ending in /v1; OPENAI_BASE_URL if neither a run nor a policy is given."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The endpoint's model name, or a policy to serve here.")
    ] = None,
    api_key_env: complete.KeyVariable = "OPENAI_API_KEY",
    step: complete.Measured = None,
    task: Annotated[str | None, complete.task("The task set.")] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="The split to measure; by default the validation split, or with --task the split that "
            "this task set has for evaluations."
        ),
    ] = None,
    read_reserved: complete.ReadReserved = False,
    limit: complete.Limit = None,
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Rollouts per task, for pass@k and majority votes."),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, help="Temperature of sampling; the default, 0, is greedy."),
    ] = None,
    store: complete.Store = None,
    without_parity: complete.WithoutParity = False,
    preset: complete.Preset = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file.")] = None,
    settings: complete.Settings = None,
    runs_dir: complete.NewIn = Path("runs"),
    price_in: complete.PriceIn = None,
    price_out: complete.PriceOut = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Measure the accuracy of a run's checkpoint, of a policy served here (--model), or of an endpoint."""
    given = without(locals(), "json_", "agents", "price_in", "price_out")
    from harness.api.evaluating import Wanted
    from harness.compare.costs import price_of

    price = price_of(price_in, price_out)
    if agents is not None:
        _evaluate_several(agents, given, price, json_)
        return
    evaluation = Wanted(**given).asked()
    measured = evaluation.carry_out(progress_console())
    if json_:
        emit_json(measured.record)
    else:
        results().print(measured.summary)
        if cost := cost_line(measured, price):
            results().print(cost)
    if spoilt(measured.record["result"] or {}):
        raise typer.Exit(1)
    if not json_ and run is not None and limit is None:
        _show_limit(evaluation)


def _show_limit(evaluation: Evaluation) -> None:
    """Print how to measure all tasks if the limit of the training was used."""
    task, known = evaluation.config.task, evaluation.known
    limit, split = task.val_limit, task.val_split
    if limit is not None and limit < known:
        results().print(
            f"{limit} of the {known} tasks of {split!r}, as in the training "
            f"(task.val_limit): --limit {known} measures all"
        )


def cost_line(measured: LoadedRun, price: Price | None) -> str:
    """Return the cost of a run in one line; empty if nothing was counted."""
    from harness.compare.costs import significant, tokens_of
    from harness.compare.measures import gpu_hours
    from harness.runs.folder import RunFolder

    tokens = tokens_of(RunFolder(measured.path))
    if tokens is None:
        return ""
    parts = [f"{tokens.prompt:,} prompt tokens", f"{tokens.response:,} response tokens"]
    if tokens.right:
        each = (tokens.prompt + tokens.response) / tokens.right
        parts.append(f"{significant(each)} tokens per right answer")
    if hours := gpu_hours(measured.record):
        parts.append(f"{hours:.2f} GPU-hours")
    if price is not None:
        money = price.of(tokens.prompt, tokens.response)
        parts.append(f"price {significant(money, 3)}")
    return f"cost: {', '.join(parts)}"


def _evaluate_several(agents: str, given: dict[str, Any], price: Price | None, json_: bool) -> None:
    """Measure several agents one after the other, and compare them.

    Raises:
        UserError: An agent is named twice, or the request is impossible; nothing was started.
    """
    from harness.api.evaluating import measure_agents
    from harness.compare import compare
    from harness.compare.formats import show_brief

    names = [name.strip() for name in agents.split(",") if name.strip()]
    if given.pop("agent") is not None:
        raise UserError("give --agent for one agent or --agents for several, not both")
    measured = measure_agents(names, progress_console(), **given)
    paths = shlex.join(os.path.relpath(run.path) for run in measured)
    try:
        compared = compare([run.path for run in measured], baseline=names[0], references=False)
    except NotComparable as error:
        raise NotComparable(
            f"{error}\nThe evaluations are finished and kept. `harness eval` has no --allow: "
            f"add it to `harness compare {paths}`"
        ) from error
    if json_:
        emit_json(compared.data)
    else:
        show_brief(results(), compared.data, price)
        results().print(f"full comparison: harness compare {paths}", soft_wrap=True)
    # After the output, because a spoilt result is worth reading, too.
    for run in measured:
        if spoilt(run.record["result"] or {}):
            raise typer.Exit(1)
