"""`harness study`."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli import complete
from harness.cli.common import as_called, emit_json, interruptible, progress_console, results, table
from harness.errors import RunFailed, UserError
from harness.util.formatting import duration
from harness.util.parsing import at, nested
from harness_study.display import (
    Plan,
    StudyDisplay,
    few_cores,
    is_short,
    sharing,
    space_text,
    time_slices,
)

if TYPE_CHECKING:
    from rich.table import Table

    from harness.compare.costs import Price
    from harness_study.execute import Standing, StudyRun
    from harness_study.plan import Job
    from harness_study.slots import Slot

app = typer.Typer(add_completion=False)


@app.command()
def study(
    file: Annotated[
        Path, typer.Argument(help="A YAML file, or the name of one in configs/studies.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="axis=label: run only matching arms; repeatable.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds instead of the file's, for example 0,1,2.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="key=value for every run; repeatable.", autocompletion=complete.settings
        ),
    ] = None,
    at_once: Annotated[
        int,
        typer.Option(
            "--jobs",
            min=1,
            help="Concurrent runs, each on an equal share of cores and GPUs.",
        ),
    ] = 1,
    launcher: Annotated[
        str, typer.Option(help="Launcher of the runs: this machine, or a plugin's.")
    ] = "local",
    launch: Annotated[
        list[str] | None, typer.Option(help="key=value, an option of the launcher; repeatable.")
    ] = None,
    runs_dir: Annotated[Path, typer.Option(help="Parent of the study's folder.")] = Path("runs"),
    any_code: Annotated[
        bool, typer.Option("--any-code", help="Keep finished runs of other code versions.")
    ] = False,
    price_in: complete.PriceIn = None,
    price_out: complete.PriceOut = None,
    without_parity: complete.WithoutParity = False,
    json_: Annotated[
        bool, typer.Option("--json", help="Print the plan or the results as JSON.")
    ] = False,
) -> None:
    """Run a matrix of trainings: start missing runs, resume interrupted ones, keep finished ones."""
    from harness.compare.costs import price_of
    from harness.training.checks import check
    from harness_study import launchers
    from harness_study.execute import StudyRun
    from harness_study.launch_plan import (
        add_cost,
        add_warnings,
        launch_plan,
        out_of_reach,
        refuse_lost_policies,
        refuse_missing_policies,
    )
    from harness_study.plan import jobs_of, read_study, study_path
    from harness_study.state import StudyFolder
    from harness_study.study_checks import check_seeds

    price = price_of(price_in, price_out)
    described = read_study(file)
    if seeds is not None:
        described.matrix["seed"] = _seeds(seeds)
        check_seeds(described, f"--seeds {seeds}")
    jobs = jobs_of(described, set_ or [], only or [])
    for job in jobs:
        check(job.config, reads_reserved=described.read_reserved and job.kind == "eval")
    refuse_lost_policies(jobs)
    for name, launcher_options in described.launcher.items():
        launchers.launcher(name, launcher_options, f"launcher.{name}")
    options = described.launcher.get(launcher, {}) | launchers.options(launch or [])
    chosen = launchers.launcher(launcher, options)
    slots = chosen.slots(at_once, max(job.config.gpus for job in jobs))
    _refuse_shared_measuring(jobs, slots)
    uncertified = _uncertified(jobs)
    folder = StudyFolder(runs_dir / described.name, described, jobs, chosen)
    steps = folder.next_steps(jobs, any_code=any_code)
    refuse_missing_policies(steps)
    plan = launch_plan(described.name, steps, runs_dir, slots)
    add_warnings(plan, steps, runs_dir, uncertified, out_of_reach(jobs, described.margin))
    if dry_run:
        add_cost(plan, steps, runs_dir)
        emit_json(plan) if json_ else _show_plan(plan, price)
        return
    if is_short(plan):
        progress_console().print(space_text(plan))
    for step in steps:
        if step.action != "skip":
            chosen.check(step.job)
    interruptible()
    if uncertified and not without_parity and plan["to_run"]:
        _certify(uncertified)
    with folder.locked():
        shutil.copyfile(study_path(file), folder.path / "study.yaml")
        with StudyDisplay(plan, progress_console()) as display:
            standings = _execute(StudyRun(folder, steps, display.show, slots, any_code))
    failed = [run for run in standings if run.state == "failed"]
    if json_:
        emit_json(_results(standings))
    else:
        _show_end(described.name, folder.path, standings)
    if failed:
        raise RunFailed(
            f"{len(failed)} of {len(standings)} runs failed, first {failed[0].job.key}: "
            f"{failed[0].line[:200]} "
            f"(logs: {folder.path / 'logs'}). Resume them: {as_called()}"
        )


def _results(standings: list[Standing]) -> list[dict[str, str]]:
    """Return the content of `--json` at the end."""
    ends = []
    for run in standings:
        ends.append({"job": run.job.key, "state": run.state, "line": run.line})
    return ends


def _execute(run: StudyRun) -> list[Standing]:
    """Carry out a launch. After an interruption, show what is finished and how to resume."""
    try:
        return run.execute()
    except KeyboardInterrupt:
        done = 0
        for standing in run.standings:
            done += standing.state in ("finished", "skipped")
        raise KeyboardInterrupt(
            f"{done} of {len(run.standings)} runs are done, and the progress of the others is kept"
            f"{run.left()}. Resume: {as_called()}"
        ) from None


def _refuse_shared_measuring(jobs: list[Job], slots: list[Slot]) -> None:
    """Refuse shared GPUs for vLLM without a memory share, because it measures free memory.

    Raises:
        UserError: Runs would share a GPU without a configured share of its memory.
    """
    from harness.config import resolve_device

    users = Counter[str]()
    for slot in slots:
        users.update(slot.gpus or ())
    most = max(users.values(), default=0)
    if most < 2:
        return
    option = "actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes"
    for job in jobs:
        on_gpu = resolve_device(job.config.device) == "cuda"
        if on_gpu and at(nested(job.config.verl), option) is None:
            raise UserError(
                f"--jobs {len(slots)}: {most} runs would share a GPU, and vLLM gives up where the "
                "memory that it measures changes meanwhile. "
                "Say how many bytes of cache each takes, "
                f"for example --set verl.{option}=8000000000"
            )


def _uncertified(jobs: list[Job]) -> list[str]:
    """Return strict agents without a valid certificate, if agents are to be compared."""
    from harness.parity.report import uncertified

    # A study of one agent compares nothing that a certificate would prove to be the same.
    names = dict.fromkeys(job.config.agent for job in jobs)
    return uncertified(names) if len(names) > 1 else []


def _certify(agents: list[str]) -> None:
    """Create the certificates that a comparison requires, as `harness parity` does.

    Raises:
        UserError: An agent differs from its reference, or cannot be recorded.
    """
    from harness.parity.report import certify

    try:
        certify(agents, progress_console().print)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"no run was started yet. Resume: {as_called()}") from None


def _show_plan(plan: Plan, price: Price | None = None) -> None:
    from harness_study.costs import cost_text

    out = results()
    shown = table(title=f"Study {plan['study']}, in this order")
    for head in ("", "arm", "seed", "what", "why", "steps", "estimate"):
        shown.add_column(
            head, justify="right" if head in ("", "seed", "steps", "estimate") else "left"
        )
    for index, row in enumerate(plan["jobs"], 1):
        action = row["action"] if row["kind"] == "train" or row["action"] == "skip" else "evaluate"
        shown.add_row(
            str(index),
            row["arm"],
            str(row["seed"]),
            action,
            row["why"],
            str(row["steps"] or "-"),
            duration(row["estimate_s"]),
        )
    out.print(shown)
    if plan["differences"]:
        out.print(_differences_table(plan["differences"]))
    out.print(
        "Everything else is the same in all runs; "
        "runs of one seed also share data order and sampling seeds."
    )
    text = f"{plan['to_run']} of {len(plan['jobs'])} to run, {sharing(plan)}"
    if plan["estimate_s"] is not None:
        sources = [row["estimate_from"] for row in plan["jobs"] if row["estimate_from"]]
        estimate = duration(plan["estimate_s"])
        text += f", about {estimate} by the steps measured in {sources[0]} and alike"
    if plan["without_estimate"]:
        text += f"; for {plan['without_estimate']} no run was measured yet, so no estimate"
    out.print(text + ".")
    for remark in filter(None, (few_cores(plan), time_slices(plan))):
        out.print(remark)
    if "checkpoint_bytes" in plan:
        out.print(space_text(plan))
    if "cost" in plan:
        out.print(cost_text(plan["cost"], price))
    if (least := plan.get("seeds_for_equivalence")) is not None:
        seeds: dict[str, set[int]] = {}
        for row in plan["jobs"]:
            seeds.setdefault(row["arm"], set()).add(row["seed"])
        planned = max(map(len, seeds.values()))
        out.print(
            f"Equivalence is impossible with {planned} seed{'s' * (planned > 1)} at this margin, "
            f"except for identical arms: it takes at least {least} seeds, "
            "and more if trainings vary (see `harness power`)."
        )
    if plan.get("uncertified"):
        names = ", ".join(plan["uncertified"])
        out.print(
            f"No parity certificate: {names}. "
            "Created before the first run (not with --without-parity)."
        )


def _differences_table(differences: dict[str, dict[str, Any]]) -> Table:
    """Return one row for every key that differs, with the value of every arm."""
    arms: dict[str, None] = {}
    for values in differences.values():
        arms |= dict.fromkeys(values)
    shown = table("key", *arms, title="Differences between arms")
    for key, values in differences.items():
        shown.add_row(key, *[str(values.get(arm)) for arm in arms])
    return shown


def _show_end(name: str, path: Path, standings: list[Standing]) -> None:
    out = results()
    for run in standings:
        wall = f"  {duration(run.wall_s)}" if run.wall_s else ""
        out.print(f"{run.state:9} {run.job.key}  {run.line[:120]}{wall}")
    out.print(f"harness compare {path}    harness report {path}")


def _seeds(text: str) -> list[int]:
    try:
        # Ignore a comma at the end.
        seeds = list(map(int, filter(str.strip, text.split(","))))
    except ValueError as error:
        raise UserError(
            f"--seeds takes numbers separated by commas, for example 0,1,2; got {text!r}"
        ) from error
    if not seeds:
        raise UserError("--seeds names no seed")
    return seeds
