"""Print one table for a training on a GPU: seconds a step by phase, tokens a second, and limits.

    python benchmarks/gpu_step.py RUN                      # with limits, on the run's machine
    python benchmarks/gpu_step.py RUN --no-limits          # from the record alone
    python benchmarks/gpu_step.py RUN --profile-rollout --smi smi.csv --json table.json

Limits replay one step's own tokens: its calls through vLLM's offline engine with the run's engine
settings, its trained rows through a bare FSDP2 step (see `gpu_limits.py`). `--smi` takes the output
of `nvidia-smi --query-gpu=timestamp,index,utilization.gpu,memory.used --format=csv,noheader,nounits
-lms 200`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

import polars as pl
import yaml
from gpu_samples import between_rollouts, in_rollouts, samples_of
from rollout_profile import profile, spans_of

PHASES = {
    "rollout": ("sample",),
    "release": ("release",),
    "old_log_prob": ("old_log_prob", "ref"),
    "update": ("update_actor",),
    "weights": ("update_weights",),
    "checkpoint": ("save_checkpoint",),
}
"""Rows of the table by `timing_s` names, verl's and harness's. `rest` is the remaining time.

`release`: from the last rollout until the servers have released their memory. Records without
`sample` have it in `rollout`.
"""

UPDATE_PARTS = ("divide", "passes", "optimizer")
"""Parts of an optimizer step that workers time (`harness_verl/update_times.py`)."""


def read(run: Path, name: str) -> pl.DataFrame | None:
    path = run / f"{name}.parquet"
    return pl.read_parquet(path) if path.is_file() else None


def phases(steps: pl.DataFrame) -> pl.DataFrame:
    """Return seconds by phase and step, one row a step (`number`), without the first, a warm-up."""
    timed = steps.drop_nulls("timing_s/step").rename({"step": "number"})
    timed = timed.filter(pl.col("number") >= 2) if (timed["number"] >= 2).any() else timed
    timing = [name for name in timed.columns if name.startswith("timing_s/")]
    timed = timed.select(
        "number",
        pl.col(timing).fill_null(0.0).name.map(lambda name: name.removeprefix("timing_s/")),
    )
    generation = pl.col("gen") if "gen" in timed.columns else pl.lit(0.0)
    rollout = pl.col("sample") if "sample" in timed.columns else generation
    timed = timed.with_columns(sample=rollout, release=generation - rollout)
    there = {
        phase: [name for name in names if name in timed.columns] for phase, names in PHASES.items()
    }
    table = timed.select(
        "number",
        "step",
        **{phase: pl.sum_horizontal(pl.lit(0.0), *names) for phase, names in there.items()},
    )
    return table.with_columns(rest=pl.col("step") - pl.sum_horizontal(*PHASES))


def update_parts(steps: pl.DataFrame, numbers: list[int]) -> dict[str, float]:
    """Return seconds of the update's parts, medians over the steps; empty for older records.

    The difference to the update's own time is `hand_over`: Ray, rows from TransferQueue, results.
    """
    if f"timing_s/update_{UPDATE_PARTS[0]}" not in steps.columns:
        return {}
    parts = {part: pl.col(f"timing_s/update_{part}") for part in UPDATE_PARTS}
    hand_over = pl.col("timing_s/update_actor") - pl.sum_horizontal(*parts.values())
    timed = steps.filter(pl.col("step").is_in(numbers))
    return timed.select(hand_over=hand_over, **parts).median().row(0, named=True)


def tokens(episodes: pl.DataFrame, table: pl.DataFrame) -> dict[str, float]:
    """Return prompt and sampled tokens by second of the rollout phase, medians over the steps."""
    train = episodes.filter(phase="train").join(table, left_on="step", right_on="number")
    sums = train.group_by("step").agg(
        pl.sum("prompt_tokens", "response_tokens", "calls"), pl.first("rollout")
    )
    return {
        "prompt_tokens_per_s": cast(float, (sums["prompt_tokens"] / sums["rollout"]).median()),
        "sampled_tokens_per_s": cast(float, (sums["response_tokens"] / sums["rollout"]).median()),
        "prompt_tokens": cast(float, sums["prompt_tokens"].median()),
        "sampled_tokens": cast(float, sums["response_tokens"].median()),
        "calls": cast(float, sums["calls"].median()),
    }


def chosen_step(table: pl.DataFrame, transitions: pl.DataFrame) -> int | None:
    """Return the step with the median rollout time, of those with recorded tokens."""
    recorded = transitions.filter(phase="train")["step"].unique().to_list()
    order = table.filter(pl.col("number").is_in(recorded)).sort("rollout", maintain_order=True)[
        "number"
    ]
    return order[(len(order) - 1) // 2] if len(order) else None


def calls_of(transitions: pl.DataFrame, step: int, trained: bool = False) -> list[dict[str, Any]]:
    """Return token ids of one step's training calls, in the order in which they began."""
    rows = transitions.filter(pl.col("trained") | (not trained), phase="train", step=step)
    rows = rows.drop_nulls(["prompt_ids", "response_ids"]).sort("started_s", maintain_order=True)
    calls = rows.select("prompt_ids", "response_ids").rows(named=True)
    return [call for call in calls if call["prompt_ids"] and call["response_ids"]]


def engine_settings(verl: dict[str, Any], memory: float | None) -> dict[str, Any]:
    """Return the run's engine settings as arguments of vLLM's offline engine.

    Args:
        verl: The run's configuration of verl.
        memory: Share of the device's memory in place of the run's; None keeps the run's.
    """
    rollout = verl["actor_rollout_ref"]["rollout"]
    passed = (
        "dtype enforce_eager max_num_seqs max_num_batched_tokens enable_prefix_caching "
        "enable_chunked_prefill max_model_len tensor_parallel_size logprobs_mode seed"
    ).split()
    renamed = {"tensor_parallel_size": "tensor_model_parallel_size"}
    settings = {name: rollout.get(renamed.get(name, name)) for name in passed}
    settings["gpu_memory_utilization"] = memory or rollout.get("gpu_memory_utilization", 0.5)
    settings["trust_remote_code"] = bool(
        verl["actor_rollout_ref"]["model"].get("trust_remote_code")
    )
    settings |= (rollout.get("engine_kwargs") or {}).get("vllm") or {}
    for server_only in ("enable_auto_tool_choice", "tool_call_parser"):
        settings.pop(server_only, None)
    return {name: value for name, value in settings.items() if value is not None}


def limits(
    run: Path,
    record: dict[str, Any],
    table: pl.DataFrame,
    transitions: pl.DataFrame | None,
    args: Any,
) -> Any:
    """Return both limits, each measured in its own process, or the reason why one is missing."""
    if transitions is None:
        return {
            "skipped": "no transitions.parquet: the run did not keep its tokens "
            "(rollout.keep_transitions)"
        }
    if not (run / "data" / "verl.yaml").is_file():
        return {
            "skipped": "no data/verl.yaml: limits need the run's folder, "
            "on the machine where its policy lies"
        }
    step = args.step or chosen_step(table, transitions)
    if step is None:
        return {"skipped": "no step with recorded tokens"}
    verl = yaml.safe_load((run / "data" / "verl.yaml").read_text())
    actor, rollout = verl["actor_rollout_ref"]["actor"], verl["actor_rollout_ref"]["rollout"]
    devices = verl["trainer"]["nnodes"] * verl["trainer"]["n_gpus_per_node"]
    replicas = max(1, devices // rollout["tensor_model_parallel_size"])
    calls, trained = calls_of(transitions, step), calls_of(transitions, step, trained=True)
    mini = actor["ppo_mini_batch_size"] * rollout["n"]
    work = {
        "model": args.model or verl["actor_rollout_ref"]["model"]["path"],
        "engine": engine_settings(verl, args.gpu_memory_utilization),
        "rows": calls[::replicas],
        "sampling": {"temperature": rollout["temperature"], "top_p": rollout["top_p"]},
        "seed": verl["data"].get("seed", 0),
        "repeats": args.repeats,
    }
    answer: dict[str, Any] = {"of_step": step, "devices": devices, "replicas": replicas}
    if importlib.util.find_spec("vllm") is None:
        answer["rollout"] = {"skipped": "vLLM is not installed here"}
    else:
        answer["rollout"] = _measure("rollout", work, args.timeout_s)
    shared = sum(len(row["response_ids"]) for row in work["rows"])
    answer["rollout"] |= {"calls": len(work["rows"]), "sampled_tokens": shared}
    work |= {
        "rows": trained[::devices],
        "micro_batch": actor["ppo_micro_batch_size_per_gpu"],
        "optimizer_steps": -(-len(trained) // mini),
        "gradient_checkpointing": bool(
            verl["actor_rollout_ref"]["model"].get("enable_gradient_checkpointing")
        ),
        "budget_s": args.budget_s,
    }
    answer["update"] = _measure("update", work, args.timeout_s) | {
        "rows": len(work["rows"]),
        "optimizer_steps": work["optimizer_steps"],
    }
    ((run_rollout, run_update),) = table.filter(number=step).select("rollout", "update").rows()
    for name, measured, key in (
        ("rollout", run_rollout, "seeded_s"),
        ("update", run_update, "update_s"),
    ):
        answer[name]["run_s"] = measured
        if key in answer[name]:
            answer[name]["limit_s"] = answer[name][key]
            answer[name]["ratio"] = measured / answer[name][key]
    return answer


def _measure(what: str, work: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder) / "work.json", Path(folder) / "out.json"
        given.write_text(json.dumps(work))
        command = [
            sys.executable,
            str(Path(__file__).with_name("gpu_limits.py")),
            what,
            str(given),
            str(out),
        ]
        print(
            f"measuring the limit of `{what}` with {len(work['rows'])} rows ...",
            file=sys.stderr,
            flush=True,
        )
        problem = ""
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=timeout_s, check=False
            )
            if done.returncode:
                lines = [line for line in done.stderr.splitlines() if line.strip()]
                errors = [line for line in lines if "Error" in line] or lines or ["no output"]
                problem = f"status {done.returncode}: {errors[-1].strip()[:300]}"
                sys.stderr.write(done.stderr[-6000:])
        except subprocess.TimeoutExpired:
            problem = f"not done within {timeout_s:g} s"
        measured: dict[str, Any] = json.loads(out.read_text()) if out.is_file() else {}
        return measured | ({"problem": problem} if problem else {})


def measure(run: Path, args: Any) -> dict[str, Any]:
    """Return all contents of the table."""
    record: Any = json.loads((run / "run.json").read_text())
    steps, episodes, transitions = (
        read(run, name) for name in ("steps", "episodes", "transitions")
    )
    if steps is None or "timing_s/step" not in steps.columns or not steps["timing_s/step"].count():
        sys.exit(f"{run} has no finished step: steps.parquet has no timing_s/step")
    table = phases(steps)
    timed = steps.filter(pl.col("step").is_in(table["number"].to_list()))
    result: dict[str, Any] = {
        "run": record["id"],
        "agent": record["agent"],
        "gpus": record.get("hardware", {}).get("gpus"),
        "steps": table["number"].to_list(),
        "seconds": table.drop("number").median().row(0, named=True),
        "memory_gb": {
            kind: timed[f"actor/perf/max_memory_{kind}_gb"].max()
            for kind in ("allocated", "reserved")
            if f"actor/perf/max_memory_{kind}_gb" in timed.columns
        },
        "update in seconds": update_parts(steps, table["number"].to_list()),
    }
    if episodes is not None:
        result["tokens"] = tokens(episodes, table)
        if args.profile_rollout:
            result["profile"] = profile(episodes, transitions, table)
        if args.smi:
            samples = samples_of(args.smi)
            spans = list(spans_of(episodes, table["number"]).values())
            result["smi"] = in_rollouts(samples, spans)
            result["between rollouts"] = between_rollouts(samples, spans)
    if not args.no_limits:
        result["limits"] = limits(run, record, table, transitions, args)
    return result


def show(result: dict[str, Any]) -> None:
    """Print the table."""
    limit = result.get("limits", {})
    print(
        f"{result['run']} ({result['agent']}, {', '.join(result['gpus'] or ['no GPU recorded'])})"
    )
    print(f"{'phase':<14}{'s/step':>9}{'share':>8}{'limit s':>10}{'x limit':>9}")
    for name in [*PHASES, "rest", "step"]:
        value = result["seconds"][name]
        if name in ("release", "checkpoint") and not value:
            continue
        row = limit.get(name, {})
        limits = f"{row['limit_s']:>10.3f}{row['ratio']:>9.2f}" if "ratio" in row else ""
        print(f"{name:<14}{value:>9.3f}{value / result['seconds']['step']:>8.1%}{limits}")
    print(
        f"median of steps {result['steps'][0]} to {result['steps'][-1]}; "
        f"limits are of step {limit.get('of_step', '-')}"
    )
    if "tokens" in result:
        row = result["tokens"]
        print(
            f"rollout: {row['prompt_tokens_per_s']:.0f} prompt "
            f"and {row['sampled_tokens_per_s']:.0f} sampled tokens/s "
            f"({row['calls']:.0f} calls, "
            f"{row['prompt_tokens']:.0f} + {row['sampled_tokens']:.0f} tokens a step)"
        )
    for name in ("rollout", "update"):
        if row := limit.get(name):
            noted = {
                key: value for key, value in row.items() if key not in ("limit_s", "ratio", "run_s")
            }
            print(
                f"limit of {name}: "
                + ", ".join(f"{key} {_short(value)}" for key, value in noted.items())
            )
    if limit.get("replicas", 1) > 1 or limit.get("devices", 1) > 1:
        print(
            f"limits ran on one device's share: 1/{limit['replicas']} of the calls, "
            f"1/{limit['devices']} of the rows"
        )
    if "skipped" in limit:
        print(f"limits left out: {limit['skipped']}")
    for kind, value in result["memory_gb"].items():
        print(f"trainer memory, {kind}: {value:.1f} GB")
    for name in ("update in seconds", "smi", "between rollouts", "profile"):
        if row := result.get(name):
            print(f"{name}: " + ", ".join(f"{key} {_short(value)}" for key, value in row.items()))


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "/".join(_short(item) for item in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--no-limits", action="store_true", help="only what the record says")
    parser.add_argument(
        "--profile-rollout", action="store_true", help="where the rollout phase goes"
    )
    parser.add_argument("--smi", type=Path, help="samples of nvidia-smi, see above")
    parser.add_argument("--json", type=Path, help="write everything to this file too")
    parser.add_argument(
        "--step", type=int, help="the step with the tokens to replay; by default the median one"
    )
    parser.add_argument("--model", help="the policy's folder, where it is not where the run had it")
    parser.add_argument(
        "--gpu-memory-utilization", type=float, help="of the offline engine; by default the run's"
    )
    parser.add_argument(
        "--repeats", type=int, default=3, help="timed repetitions of the offline engine"
    )
    parser.add_argument(
        "--budget-s", type=float, default=60, help="longest measurement of the bare update"
    )
    parser.add_argument(
        "--timeout-s", type=float, default=240, help="longest life of either limit's process"
    )
    args = parser.parse_args()
    result = measure(args.run, args)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    show(result)


if __name__ == "__main__":
    main()
