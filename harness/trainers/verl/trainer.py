"""GRPO by verl's own V1 trainer: prepares its files, runs it beside the rollout services, follows it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import yaml

from harness.config import TrainConfig
from harness.errors import HarnessError, RunFailed
from harness.layers import merge
from harness.plugins import make_task_set
from harness.results.folder import FULL, RunFolder
from harness.results.record import changed_data, finished, run_record
from harness.rollout.processes import RUN_MARK, stop_process
from harness.trainers import Job
from harness.trainers.monitor import Monitor
from harness.trainers.order import training_order, validation_order, write_dataset
from harness.trainers.verl.compose import verl_settings, write_agent_loop
from harness.trainers.verl.limits import checkpoint_bytes


class VerlTrainer:
    """Trains with verl on a CPU or on GPUs; one run a call of `fit`."""

    def fit(self, job: Job) -> None:
        from harness.config import resolve_device
        from harness.policies import resolve

        config, folder = job.config, job.folder
        device = resolve_device(config.device)
        task_set = make_task_set(config)
        train = training_order(task_set.load(config.task.train_split), config)
        val = validation_order(task_set.load(config.task.val_split), config)
        data_dir = folder.path / "data"
        write_dataset(data_dir / "train.parquet", train, "train")
        write_dataset(data_dir / "val.parquet", val, "val")
        model_path = resolve(config.policy.path)
        steps = len(train) // config.train.batch_size
        checkpoint = folder.latest_checkpoint() if job.resume else None
        at = checkpoint[0] if checkpoint else -1
        validate = (
            checkpoint is not None and validation_due(config.train, steps, at) and not validated(folder, at, len(val))
        )
        if job.resume:
            _drop_broken(folder, at)
        saved = sum(file.stat().st_size for file in folder.checkpoints.rglob("*") if file.is_file())
        folder.reserve(ROWS_BYTES + max(checkpoint_bytes(config, model_path, steps) - saved, 0))
        if job.resume:
            folder.drop_after(at, validation=validate)
        mark = f"{folder.id}-{os.getpid()}"
        variables = _variables(folder, mark, model_path, device)
        settings = verl_settings(
            config,
            device=device,
            model_path=model_path,
            run_dir=folder.path,
            steps=steps,
            validate_first=checkpoint is None or validate,
            validate_only=at >= steps,
        )
        if config.ray_address:  # nodes that were started by hand do not inherit from here
            merge(settings, {"ray_kwargs": {"ray_init": {"runtime_env": {"env_vars": variables}}}})
        record = run_record(config, folder, task_set, train, val, model_path, device, resumed=job.resume)
        folder.write(record)
        if at >= steps and not validate:
            _whole(folder.conclude(finished(folder, "finished", "", 0.0, changed_data(task_set))))
            return
        session_file = folder.path / ".session.json"
        write_agent_loop(data_dir / "agent_loop.yaml", session_file)
        (data_dir / "verl-settings.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        expected = {"train": config.train.batch_size * config.rollout.group_size, "val": len(val)}
        monitor = Monitor(folder, steps, expected, config.rollout.max_failed_share)
        began = time.time()
        status, reason = "failed", ""
        # The driver first: its imports take longest, and need nothing of ours.
        driver = _start(folder, _environment(variables, device, config.gpus))
        try:
            from harness.trainers.verl.run import VerlRun

            VerlRun(job, model_path, mark, driver, session_file, monitor).execute()
            status = "finished"
        except KeyboardInterrupt:
            status, reason = "interrupted", "interrupted by the user"
            raise
        except HarnessError as error:
            reason = str(error)
            raise
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"
            if isinstance(error, OSError) and error.errno in FULL:
                raise RunFailed(reason) from error
            raise
        finally:
            stop_process(driver)
            session_file.unlink(missing_ok=True)
            unwritten = folder.conclude(finished(folder, status, reason, time.time() - began, changed_data(task_set)))
        _whole(unwritten)


ROWS_BYTES = 64 * 2**20
"""What the rows, logs and tables of a small run take; there should be room for that, and for its checkpoints."""


def _whole(unwritten: str) -> None:
    if unwritten:
        raise RunFailed(f"{unwritten}: make room, then `harness train --resume` writes them")


def _drop_broken(folder: RunFolder, newest: int) -> None:
    """Remove checkpoints that were cut off while they were written: verl would neither use nor ever remove them."""
    for checkpoint in folder.checkpoints.glob("global_step_*"):
        if not (checkpoint / "data.pt").exists() and checkpoint.name != f"global_step_{newest}":  # it is written last
            shutil.rmtree(checkpoint)


def validation_due(train: TrainConfig, steps: int, step: int) -> bool:
    """Whether a run of `steps` steps is validated after this one."""
    return step == steps or (train.val_every > 0 and step > 0 and step % train.val_every == 0)


def validated(folder: RunFolder, step: int, tasks: int) -> bool:
    """Whether the validation after a step ended, and well enough: verl saves a checkpoint before it."""
    rows = [row for row in folder.rows("episodes") if row["phase"] == "val" and row["step"] == step]
    failed = sum(row["reward"] is None for row in rows)
    return len(rows) >= tasks and failed <= folder.config().rollout.max_failed_share * tasks


def _start(folder: RunFolder, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with (folder.logs / "verl.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "harness.trainers.verl.driver", str(folder.path / "data")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,  # Ctrl-C is ours to handle
        )


def _environment(variables: dict[str, str], device: str, gpus: int) -> dict[str, str]:
    environment = {**os.environ, **variables}
    if device == "cpu":
        # No GPU of the machine is to be seen, yet Ray wants one entry for each logical GPU of verl's placement groups.
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(["-1"] * gpus)
    return environment


def _variables(folder: RunFolder, mark: str, model: str, device: str) -> dict[str, str]:
    """What every process of the run finds in its environment, on every node."""
    variables = {
        RUN_MARK: mark,
        "VERL_FILE_LOGGER_PATH": str(folder.logs / f"steps-{time.time_ns()}-verl.jsonl"),
        "TENSORBOARD_DIR": str(folder.path / "tensorboard"),
        "PYTHONUNBUFFERED": "1",
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        # One idle worker a logical core would import everything at once, on however few real cores there are.
        "RAY_enable_worker_prestart": "0",
        "RAY_prestart_worker_first_driver": "0",
        "TQ_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "TOKENIZERS_PARALLELISM": "false",
        "HYDRA_FULL_ERROR": "1",
        # Ray would otherwise set OMP_NUM_THREADS=1 in every actor.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(len(os.sched_getaffinity(0))),
    }
    if Path(model).exists():
        variables |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if device == "cpu":
        variables["VERL_PLATFORM"] = "cpu"
    return variables
