"""`harness eval`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli import complete
from harness.cli.common import (
    emit_json,
    environment_endpoint,
    interruptible,
    named_endpoint,
    progress_console,
    results,
    say_what_is_awaited,
)
from harness.cli.display import counted
from harness.cli.serve import parser_of
from harness.config import Config, PolicyConfig, load_config, resolve_device
from harness.errors import UserError
from harness.policies import fetched
from harness.records import AGENT_OUTCOMES
from harness.results.folder import RunFolder
from harness.results.readings import FILE
from harness.wording import answered_by, duration, failed_itself, mean, measured, spoilt, unread

if TYPE_CHECKING:
    from harness.policies.roles import Answerer
    from harness.results.model import Parent, RunRecord

app = typer.Typer(add_completion=False)


@app.command()
def evaluate(
    run: Annotated[
        Path | None,
        typer.Argument(help="A run folder: its newest checkpoint is measured.", autocompletion=complete.runs),
    ] = None,
    plugin: Annotated[
        str | None, typer.Option(help="The agent; by default the run's.", autocompletion=complete.agents)
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(help="An OpenAI-compatible URL ending in /v1; OPENAI_BASE_URL if nothing is named."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The endpoint's model name, or a policy to serve here.")] = None,
    api_key_env: Annotated[str, typer.Option(help="Variable that holds the endpoint's key.")] = "OPENAI_API_KEY",
    step: Annotated[int | None, typer.Option(help="A checkpoint other than the newest.")] = None,
    task: Annotated[str | None, typer.Option(help="The task set.", autocompletion=complete.task_sets)] = None,
    split: Annotated[
        str | None, typer.Option(help="The split; by default that of validation, or what the task set names.")
    ] = None,
    read_reserved: Annotated[
        bool, typer.Option(help="Read a split that is reserved for the end; it is written down beside the runs.")
    ] = False,
    limit: Annotated[int | None, typer.Option(help="Only so many tasks, a fixed sample.")] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Rollouts of a task, for pass@k and what they agree on.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0, the default, is greedy.")] = None,
    preset: Annotated[
        str | None, typer.Option(help="A preset of `harness config list`.", autocompletion=complete.presets)
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file.")] = None,
    set_: complete.Settings = None,
    runs_dir: Annotated[Path, typer.Option(help="Where the evaluation's folder is made.")] = Path("runs"),
    json_: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Measure accuracy: of a run's checkpoint, of a policy served here (--model), or of any endpoint."""
    from harness.cli.train import default_preset
    from harness.plugins import make_task_set, task_set_spec
    from harness.policies.roles import answerers
    from harness.run import check, check_device, load_tasks

    overrides = list(set_ or [])
    if task is not None and split is None:
        split = task_set_spec(task).eval_split or None
    options: dict[str, Any] = {"task.name": task, "task.val_split": split, "task.val_limit": limit}
    options |= {"eval.samples": samples, "eval.temperature": temperature}
    for name, value in options.items():
        if value is not None:
            overrides.append(f"{name}={value}")
    trained = RunFolder.open(run) if run is not None else None
    if trained is not None:
        if endpoint is not None or model is not None:
            raise UserError("give either a run or --endpoint/--model, not both")
        resolved = of_a_run(trained, overrides, plugin)
    else:
        endpoint_here = endpoint or (environment_endpoint() if model is None else None)
        if endpoint_here is None and model is None:
            raise UserError(
                "nothing to measure: give a run folder, --endpoint URL --model NAME (or set OPENAI_BASE_URL), "
                "or --model POLICY"
            )
        if preset is None and config is None:
            preset = "endpoint" if endpoint_here else default_preset(task, resolve_device("auto"))
        resolved = load_config(preset, config, overrides, agent=plugin)
    check(resolved, trains=False, reads_reserved=read_reserved)
    answers = answerers(resolved)
    known = len(load_tasks(resolved, make_task_set(resolved), resolved.task.val_split))
    interruptible()
    # The folder comes once all is there that can be asked for wrongly: an error leaves no empty run behind.
    label = f"eval-{resolved.agent}"
    if endpoint is not None or (trained is None and model is None):
        url, name, key = named_endpoint(endpoint, model, api_key_env)
        folder = RunFolder.create(runs_dir, label)
        with folder.dropped_without_record():
            record = _measure(resolved, folder, url, name, key, False, "", None, answers)
    else:
        from harness.policies.export import checkpoint_dir, checkpoint_model
        from harness.policies.serve import served

        check_device(resolved)
        device = resolve_device(resolved.device)
        policy = str(checkpoint_model(trained, step)) if trained is not None else fetched(PolicyConfig(path=str(model)))
        folder = RunFolder.create(runs_dir, label)
        length = resolved.sampling.max_prompt_tokens + resolved.sampling.max_response_tokens
        log = folder.logs / "policy.log"
        parser = parser_of(resolved, policy)
        with folder.dropped_without_record(), served(policy, device, length, log, parser) as url:
            parent: Parent | None = None
            if trained is not None:
                parent = {"run": trained.id, "step": checkpoint_dir(trained, step)[0]}
            record = _measure(resolved, folder, url, policy, None, True, policy, parent, answers)
    if json_:
        emit_json(record)
    else:
        _show(folder, record)
    if spoilt(record["result"] or {}):
        raise typer.Exit(1)
    asked = resolved.task.val_limit
    if not json_ and trained is not None and limit is None and asked is not None and asked < known:
        results().print(
            f"{asked} of the {known} tasks of {resolved.task.val_split!r}, as in the training (task.val_limit): "
            f"--limit {known} asks all"
        )


def of_a_run(trained: RunFolder, overrides: list[str], plugin: str | None) -> Config:
    """A training's configuration as its evaluation has it: its limit is of its own validation, not of a named split."""
    named = {item.partition("=")[0] for item in overrides}
    if "task.val_split" in named and "task.val_limit" not in named:
        overrides = [*overrides, "task.val_limit=null"]
    return load_config(None, trained.path / "config.yaml", overrides, agent=plugin)


def _measure(
    config: Config,
    folder: RunFolder,
    url: str,
    model: str,
    key: str | None,
    token_ids: bool,
    policy: str,
    parent: Parent | None,
    answers: Mapping[str, Answerer],
) -> RunRecord:
    from harness.evaluation import evaluate
    from harness.gateway.client import Endpoint

    say_what_is_awaited(config, folder)
    with counted(progress_console(), f"{config.agent} on {config.task.name}/{config.task.val_split}") as show:
        return evaluate(config, folder, Endpoint(url, model, key, token_ids), show, policy, parent, answers)


def _show(folder: RunFolder, record: Mapping[str, Any]) -> None:
    result = record["result"]
    out = results()
    low, high = result["interval_95"] or (None, None)
    graded = result.get("graded", False)
    name = measured(graded)
    several = result.get("samples")
    asked = f"{result['tasks'] * several['samples']} rollouts" if several else f"{result['tasks']} tasks"
    out.print(
        f"{record['agent']}: {name} {mean(result['accuracy'], graded)} "
        f"(95 % interval {mean(low, graded)} to {mean(high, graded)}) on {result['scored']} scored of "
        f"{asked}, {duration(result['wall_s'])}{spoilt(result)}"
    )
    if said := answered_by(record.get("roles", {})):
        out.print(said)
    if several:
        from harness.compare.sampled import lines

        out.print("\n".join(lines(several, graded)))
    levels = result["by_difficulty"].items()
    told = (f"{level} {mean(row['accuracy'], graded)} ({row['tasks']})" for level, row in levels)
    if len(levels) > 1:
        out.print(f"by difficulty: {', '.join(told)}")
    if result["empty_golds"]:
        out.print(f"{result['empty_golds']} of the golds return no row: an empty answer to them proves little")
    if result["agent_failed"]:
        out.print(failed_itself(result, graded))
    if said := unread(result["unread_calls"], result["scored"] + result["unscored"]):
        out.print(said)
    if result["unscored"]:
        ended = ((name, count) for name, count in sorted(result["outcomes"].items()) if name != "ok")
        rest = ", ".join(f"{name} {count}" for name, count in ended if name not in AGENT_OUTCOMES)
        low, high = result["bounds"]
        out.print(
            f"{result['unscored']} unscored ({rest}): {name} is {mean(low, graded)} to {mean(high, graded)}, "
            f"all {'lowest to highest' if graded else 'wrong to right'}"
        )
    if reading := record.get("reading"):
        before = (
            f"not the first one: {', '.join(reading['earlier'])} read it" if reading["earlier"] else "the first one"
        )
        out.print(
            f"{reading['split']!r} is for one reading at the end; of {reading['agent']} with this policy this is "
            f"{before} ({folder.path.parent / FILE})"
        )
    out.print(str(folder.path))
