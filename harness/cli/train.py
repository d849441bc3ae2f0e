"""`harness train`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from harness import timeline
from harness.cli import complete
from harness.cli.common import emit_json, interruptible, progress_console, results, say_what_is_awaited
from harness.cli.display import TrainingDisplay
from harness.cli.logs import followed
from harness.config import Config, cache_dir, load_config, resolve_device
from harness.errors import UserError
from harness.results.folder import RunFolder, replace_text
from harness.wording import answered_by, duration, failed_itself, mean, measured, percent, spoilt

if TYPE_CHECKING:
    from harness.run import Data

app = typer.Typer(add_completion=False)


@app.command()
def train(
    plugin: Annotated[
        str | None, typer.Option(help="The agent to train, for example langgraph_sql.", autocompletion=complete.agents)
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="A preset of `harness config list`.", autocompletion=complete.presets)
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file, for example a run's config.yaml.")] = None,
    set_: complete.Settings = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="The task set: pocket, spider, bird, files (your own), ...", autocompletion=complete.task_sets
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The policy: bundled, a folder, or a Hugging Face id (policy.path).")
    ] = None,
    n_runners: Annotated[int | None, typer.Option(help="Runner processes (rollout.runners).")] = None,
    agent_match: Annotated[str | None, typer.Option(help="Regular expression: the roles to train.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of data order, sampling and optimizer.")] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps in all.")] = None,
    ci_fast: Annotated[bool, typer.Option("--ci-fast", help="One step on a few questions.")] = False,
    ci: Annotated[bool, typer.Option("--ci", help="Twenty steps.")] = False,
    resume: Annotated[
        Path | None, typer.Option(help="A run folder to go on with.", autocompletion=complete.runs)
    ] = None,
    runs_dir: Annotated[Path, typer.Option(help="Where the run's folder is made.")] = Path("runs"),
    trace_start: Annotated[
        Path | None, typer.Option(help="Write here, as a Chrome trace, what each process did while it started.")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show what every process of the run logs.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration and stop.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the run's record as JSON.")] = False,
) -> None:
    """Train an agent, with GRPO or as train.algorithm says, and leave a run folder."""
    if resume is not None:
        from harness.run import RESUMABLE, same_run

        folder = RunFolder.open(resume)
        before = folder.read()
        kind, result = before["kind"], before["result"]
        if kind != "train":
            raise UserError(f"{resume} is of kind {kind!r}, not a training: start it again with `harness {kind}`")
        if (
            any(option is not None for option in (plugin, preset, config, task, model, n_runners, agent_match, seed))
            or ci
            or ci_fast
        ):
            raise UserError(
                f"--resume takes the run's own configuration; only --set of {', '.join(RESUMABLE)} may change it"
            )
        resolved = load_config(None, folder.path / "config.yaml", set_ or [])
        if steps is not None:
            resolved.train.steps = steps
        same_run(folder.config(), resolved)
        if before["status"] == "finished" and result and result["steps"] >= (resolved.train.steps or 0):
            done = result["steps"]
            progress_console().print(f"{resume} finished after its {done} steps; --steps {2 * done} goes on")
            emit_json(before) if json_ else summary(folder, before)
            return
    else:
        if ci and ci_fast:
            raise UserError("--ci is twenty steps and --ci-fast is one: give one of them")
        short = {"task.name": task, "policy.path": model, "rollout.runners": n_runners}
        overrides = _ci(fast=ci_fast) if ci or ci_fast else []  # first: what is asked for by name counts
        overrides += [f"{key}={value}" for key, value in short.items() if value is not None]
        overrides += set_ or []
        if steps is not None:
            overrides.append(f"train.steps={steps}")
        device = next((item.partition("=")[2] for item in overrides if item.startswith("device=")), "auto")
        if preset is None and config is None:
            preset = default_preset(task, resolve_device(device))
        resolved = load_config(preset, config, overrides, agent=plugin, agent_match=agent_match, seed=seed)
    from harness.plugins import trained_by
    from harness.run import check, check_device, load_data

    check(resolved)
    resolved.agent_match = trained_by(resolved.agent, resolved.agent_match)
    if dry_run:
        show_config(resolved, json_)
        return
    check_device(resolved)
    data = load_data(resolved, folder if resume is not None else None)
    if resume is None:  # only now, when all that can be asked for wrongly was: an error leaves no empty run behind
        folder = RunFolder.create(runs_dir, resolved.agent)
    with (
        folder.dropped_without_record(),
        followed(folder.logs) if debug else nullcontext(),
        timeline.recorded(trace_start) if trace_start else nullcontext(),
    ):
        timeline.born("harness train")
        fit(resolved, folder, data, resume=resume is not None, panel=not debug)
    if trace_start:
        progress_console().print(f"timeline of the start: {trace_start} (open it at https://ui.perfetto.dev)")
    record = folder.read()
    if json_:
        emit_json(record)
    else:
        summary(folder, record)
    if spoilt(record["result"] or {}):
        raise typer.Exit(1)


def default_preset(task: str | None, device: str) -> str:
    """The preset of a task set on a device, where none is named."""
    from harness.plugins import task_set_spec

    own = dict(task_set_spec(task).presets) if task is not None else {}
    return own.get(device, "cpu" if device == "cpu" else "gpu")


def fit(config: Config, folder: RunFolder, data: Data, *, resume: bool, panel: bool = True) -> None:
    """Train with a live display on stderr: a panel on a terminal, or lines."""
    interruptible()
    agent = f"{config.agent} on {config.task.name}, {resolve_device(config.device)}"
    took = _start_s(config)
    last = "" if took is None else f", which took {duration(took)} the last time"
    starting = f"{config.train.trainer} is being started{last}"
    progress_console().print(f"{folder.path}: {agent}; {starting}")
    say_what_is_awaited(config, folder)
    title = f"{config.agent} · train {config.agent_match!r} · seed {config.seed}"
    from harness import run  # takes a second

    view = TrainingDisplay(progress_console(), title, took, _advice(config), panel=panel)
    try:
        with view:
            run.train(config, folder, data, resume=resume, on_progress=view.show)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_kept(config, folder)) from None
    finally:
        if view.start_s is not None:
            _keep_start_s(config, view.start_s)


def _advice(config: Config) -> str:
    """What to try besides where nothing is learned."""
    if config.policy.path == "pocket-sql" and config.task.name != "pocket":
        return f", or another policy.path: pocket-sql speaks only the task set pocket, not {config.task.name}"
    return ""


def _starts() -> tuple[Path, dict[str, float]]:
    """Seconds that starts took on this machine, by what was started, and the file they are kept in."""
    file = cache_dir() / "starts.json"
    try:
        return file, {str(key): float(value) for key, value in json.loads(file.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return file, {}


def _started(config: Config) -> str:
    slow = " deterministic" if config.deterministic else ""
    return f"{config.train.trainer} {resolve_device(config.device)} {config.policy.path}{slow}"


def _start_s(config: Config) -> float | None:
    return _starts()[1].get(_started(config))


def _keep_start_s(config: Config, seconds: float) -> None:
    file, known = _starts()
    with suppress(OSError):  # it is a remark for the next time, no part of the run
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(file, json.dumps(known | {_started(config): round(seconds, 1)}, indent=2))


def _kept(config: Config, folder: RunFolder) -> str:
    """What an interrupted training leaves, and how it goes on."""
    from harness.plugins import make_trainer

    if not (folder.path / "run.json").is_file():
        return "nothing was started yet, and nothing is kept"
    step = max(make_trainer(config).checkpoints(folder), default=0)
    kept = f"step {step} and all before it are kept. Go on" if step else "no checkpoint was saved yet. Begin anew"
    return f"{kept}: harness train --resume {folder.path}"


def show_config(config: Config, as_json: bool) -> None:
    """The resolved configuration on stdout."""
    if as_json:
        emit_json(config.dump())
    else:
        results().out(yaml.safe_dump(config.dump(), sort_keys=False, allow_unicode=True), end="")


def summary(folder: RunFolder, record: Mapping[str, Any]) -> None:
    """The few lines that end a training."""
    from harness.plugins import agent_spec, is_reference

    result = record["result"]
    out = results()
    graded = result.get("graded", False)
    curve = "  ".join(f"{step}: {mean(value, graded)}" for step, value in result["val_curve"].items())
    out.print(f"{record['agent']}: {record['status']} after {result['steps']} steps, {duration(result['wall_s'])}")
    if said := answered_by(record.get("roles", {})):
        out.print(said)
    if result["val_accuracy_final"] is not None:
        first, last = (mean(result[f"val_accuracy_{when}"], graded) for when in ("initial", "final"))
        out.print(f"validation {measured(graded)} {first} -> {last}   (by step: {curve}){spoilt(result)}")
    if result.get("agent_failed"):
        out.print(f"of the last validation {failed_itself(result, graded)}")
    if result.get("no_signal"):
        out.print(f"nothing could be learned: {result['no_signal']}")
    elif result.get("signal") is not None:
        chosen = record["identity"]["train"]["algorithm"] == "rejection"
        which = "with a rollout good enough" if chosen else "with different rewards"
        out.print(f"groups {which}, which training learns from: {percent(result['signal'])}")
    if result["rollout_probs_diff_max"] is not None:
        out.print(f"rollout against trainer, largest probability difference: {result['rollout_probs_diff_max']:.1e}")
    if record.get("parity") is None and not is_reference(record["agent"]) and agent_spec(record["agent"]).strict:
        out.print(
            f"no parity certificate: `harness parity {record['agent']}` makes one, for this run too; without it "
            "`harness compare` does not hold the run against another agent's"
        )
    out.print(f"{folder.path}   (next: harness report {folder.path}, harness eval {folder.path})")


def _ci(*, fast: bool) -> list[str]:
    if fast:
        small = [
            "train.steps=1",
            "train.batch_size=4",
            "task.val_limit=8",
            "train.val_every=0",
            "train.save_every=0",
        ]
        return small
    return ["train.steps=20", "train.val_every=10"]
