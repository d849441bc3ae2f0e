"""Train with verl's own V1 trainer: prepare files, run it with the rollout services, follow it."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from harness.config import Config, resolve_device
from harness.contracts.trainers import Standby, Trainer
from harness.errors import EnvironmentProblem, how_to_install
from harness.rollout.processes import PARENT, RUN_MARK, end_group, no_orphans, stop_process
from harness.rollout.queue_plugin import queue_spec
from harness.runs.folder import RunFolder
from harness.util import start_trace
from harness.util.parsing import at, digest, merge
from harness.util.threads import computing_threads
from harness_trackers.reach import left_off, lost, without_keys
from harness_verl import forks
from harness_verl.checkpoints import check, checkpoints, drop_broken
from harness_verl.compose import verl_settings, write_agent_loop
from harness_verl.limits import all_checkpoint_bytes, checkpoint_bytes
from harness_verl.listeners import loopback_variables
from harness_verl.names import LOG, LOST_FILE, QUEUE_KEY, SESSION_FILE
from harness_verl.patched import transfer_queue
from harness_verl.verl_config import chosen

if TYPE_CHECKING:
    from harness.contracts.findings import Finding
    from harness.contracts.trainers import LiveRun

logger = logging.getLogger(__name__)
RAYS_ROOM = 20
"""Characters of a folder's name: a socket's name has 107, of which
`/harness-*/ray/session_DATE_PROCESS/sockets/plasma_store` takes 85."""
SCRATCH = "harness-"
"""Prefix of the folder of a run's temporary files."""
BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"
"""Environment variable that selects vLLM's batch-invariant kernels."""
MOST_LOGGED = 2**20
"""Bytes to keep of each of Ray's logs."""
VERLS_OWN = {
    "NCCL_DEBUG": "WARN",
    "VLLM_LOGGING_LEVEL": "WARN",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "true",
    "VLLM_DISABLE_COMPILE_CACHE": "1",
}
"""verl's defaults for its workers on GPUs; here they are set before the workers import vLLM."""
COMPILE_CACHE_IS_OFF = "VLLM_DISABLE_COMPILE_CACHE"
"""Environment variable that makes every vLLM engine compile the model again if it is 1."""


class VerlTrainer(Trainer):
    """Trains with verl on a CPU or on GPUs."""

    def check(self, config: Config) -> None:
        if find_spec("verl") is not None:
            chosen(config)

    def check_machine(self, config: Config) -> None:
        _check_installed()
        queue_spec()
        computing_threads()

    def examine(self, address: str) -> Iterator[Finding]:
        _check_installed()
        from harness_verl.cluster import examine

        yield from examine(address)

    def standby(self, config: Config, environment: Mapping[str, str]) -> Standby | None:
        from harness_verl.standby import ForkServer

        device = resolve_device(config.device)
        if not forks.possible(device, config.ray_address or "local", config.deterministic):
            return None
        variables = _variables(config, device, config.nodes == 1) | _hidden(device, config.gpus)
        kind = digest(variables)
        if _standby(kind, environment)[forks.STANDBY]:
            return None
        return ForkServer({**environment, **variables}, kind, device)

    def checkpoints(self, folder: RunFolder) -> dict[int, Path]:
        return checkpoints(folder)

    def export(self, folder: RunFolder, checkpoint: Path, target: Path) -> None:
        from harness_verl.models import export

        check(folder, checkpoint)
        export(checkpoint, target)

    def policy(self, folder: RunFolder, checkpoint: Path) -> Any:
        from harness_verl.models import trained_policy

        check(folder, checkpoint)
        return trained_policy(checkpoint)

    def prepare(self, run: LiveRun) -> int:
        if run.done:
            check(run.folder, checkpoints(run.folder)[run.done])
        drop_broken(run.folder)
        _settings(run)
        return all_checkpoint_bytes(run.config, run.model, run.steps)

    def checkpoint_bytes(self, config: Config, model: str) -> int:
        return checkpoint_bytes(config, model)

    def fit(self, run: LiveRun) -> None:
        with no_orphans():
            self._fit(run)

    def _fit(self, run: LiveRun) -> None:
        config, folder = run.config, run.folder
        mark = f"{folder.id}-{os.getpid()}"
        shared, hidden = (
            _variables(config, run.device, Path(run.model).exists()),
            _hidden(run.device, config.gpus),
        )
        variables = shared | {
            RUN_MARK: mark,
            transfer_queue.KEY_FILE: str(folder.path / QUEUE_KEY),
            "VERL_FILE_LOGGER_PATH": str(folder.logs / f"steps-{time.time_ns()}-verl.jsonl"),
            "TENSORBOARD_DIR": str(folder.path / "tensorboard"),
            "WANDB_DIR": os.environ.get("WANDB_DIR") or str(folder.path),
            "SWANLAB_LOG_DIR": os.environ.get("SWANLAB_LOG_DIR") or str(folder.path / "swanlog"),
            "MLFLOW_ALLOW_FILE_STORE": "true",
        }
        address = os.environ.get("MLFLOW_TRACKING_URI") or (folder.path / "mlruns").as_uri()
        if without_keys(address) == address:  # these may be written down
            variables["MLFLOW_TRACKING_URI"] = address
        settings = _settings(run)
        _leave_off(settings["trainer"]["logger"])
        if config.ray_address:  # nodes that were started by hand do not inherit from here
            merge(settings, {"ray_kwargs": {"ray_init": {"runtime_env": {"env_vars": variables}}}})
        data_dir, session_file = folder.path / "data", folder.path / SESSION_FILE
        _forget(folder)  # left by a launch that was killed
        transfer_queue.write_key(folder.path / QUEUE_KEY)
        write_agent_loop(data_dir / "agent_loop.yaml", session_file)
        (data_dir / "verl-settings.yaml").write_text(
            yaml.safe_dump(settings, sort_keys=False), encoding="utf-8"
        )
        # Start the driver first: its imports take longest and need no service.
        scratch = tempfile.TemporaryDirectory(
            prefix=SCRATCH, dir=_place(), ignore_cleanup_errors=True
        )
        _noted(data_dir / "scratch", scratch.name)
        ours = {
            "RAY_TMPDIR": scratch.name,
            "TMPDIR": scratch.name,
            **_standby(digest(shared | hidden), {**os.environ, **run.preloaded}),
        }
        if not config.ray_address:
            ours |= loopback_variables(os.environ)
        log = folder.logs / LOG
        begins = log.stat().st_size if log.exists() else 0
        driver = _start(log, data_dir, {**os.environ, **variables, **hidden, **ours})
        well = False
        try:
            with start_trace.span("imports of the queue"):
                from harness_verl.run import VerlRun

                work = VerlRun(run, mark, driver, session_file, begins, Path(scratch.name))
            work.execute()
            well = True
        finally:
            stop_process(driver)
            end_group(driver.pid)
            if not well:
                _keep_rays_logs(Path(scratch.name), folder.logs)
            scratch.cleanup()
            (data_dir / "scratch").unlink(missing_ok=True)
            _forget(folder)


def _check_installed() -> None:
    if find_spec("verl") is None:
        raise EnvironmentProblem(f"training is not installed: {how_to_install('cpu')}")


def _leave_off(trackers: list[str]) -> None:
    """Remove and log the trackers without a server that answers."""
    for name in [*trackers]:
        if fault := lost(name):
            logger.error("%s", left_off(name, fault))
            trackers.remove(name)


def _forget(folder: RunFolder) -> None:
    for name in (SESSION_FILE, QUEUE_KEY, LOST_FILE):
        (folder.path / name).unlink(missing_ok=True)


def _settings(run: LiveRun) -> dict[str, Any]:
    return verl_settings(
        run.config,
        device=run.device,
        model_path=run.model,
        run_dir=run.folder.path,
        steps=run.steps,
        validate_first=run.validate_first,
        validate_only=run.done >= run.steps,
    )


def _start(log_file: Path, data_dir: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with log_file.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "harness_verl.driver", str(data_dir)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**environment, PARENT: str(os.getpid())},
            start_new_session=True,  # harness handles Ctrl-C, not verl
        )


def _noted(note: Path, scratch: str) -> None:
    """Record where a run's temporary files are, and remove those of a launch that was killed."""
    with suppress(OSError, UnicodeDecodeError):
        left = Path(note.read_text(encoding="utf-8"))
        if left.name.startswith(SCRATCH) and left.is_absolute() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
    note.write_text(scratch, encoding="utf-8")


def _place() -> str:
    """Return the folder for Ray's and verl's temporary files: Ray's sockets need a short name."""
    usual = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    place = usual if len(usual) <= RAYS_ROOM else "/tmp"
    try:
        os.makedirs(place, exist_ok=True)
    except OSError as error:
        raise EnvironmentProblem(
            f"no temporary files can be made in {place}: {error.strerror}; set TMPDIR"
        ) from error
    return place


def _keep_rays_logs(scratch: Path, logs: Path) -> None:
    """Keep the output of Ray's own processes for a run that failed."""
    for log in scratch.glob("ray/session_2*/logs/*"):
        if (
            log.name.startswith(("gcs_server", "raylet"))
            and log.suffix in (".out", ".err")
            and log.stat().st_size
        ):
            with suppress(OSError), log.open("rb") as file:
                file.seek(max(0, log.stat().st_size - MOST_LOGGED))
                (logs / f"ray-{log.name}").write_bytes(file.read())


def _standby(kind: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the fork server that an environment names, if it is of this kind; else no name."""
    name, _, held = environment.get(forks.STANDBY, "").partition(" ")
    return {forks.STANDBY: name if held == kind else ""}


def _hidden(device: str, gpus: int) -> dict[str, str]:
    """Hide the machine's GPUs on a CPU, with one entry for each logical GPU that Ray expects."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(["-1"] * gpus)} if device == "cpu" else {}


def _variables(config: Config, device: str, has_policy: bool) -> dict[str, str]:
    """Return the environment of every process of such a run, on every node.

    Raises:
        EnvironmentProblem: `OMP_NUM_THREADS` holds no number of threads.
    """
    # A CPU's actors need all threads, and so does an optimizer there; Ray would set one. Otherwise
    # one thread is Ray's and vLLM's default on GPUs, where the host computes little.
    offloaded = at(config.verl, "actor_rollout_ref.actor.fsdp_config.offload_policy", False)
    threads = str(computing_threads()) if device == "cpu" or offloaded else "1"
    variables = {
        "PYTHONUNBUFFERED": "1",
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        # One idle worker a logical core would import everything at once, on fewer real cores.
        "RAY_enable_worker_prestart": "0",
        "RAY_prestart_worker_first_driver": "0",
        # Under `uv run` Ray would send the working directory to every worker.
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        # Ray may request a worker before its fork server has imported everything.
        "RAY_worker_register_timeout_seconds": "300",
        "TQ_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "TOKENIZERS_PARALLELISM": "false",
        "HYDRA_FULL_ERROR": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or threads,
    }
    if has_policy:
        variables |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if device == "cpu":
        variables["VERL_PLATFORM"] = "cpu"
    else:
        defaults = dict(VERLS_OWN)
        if not config.deterministic:
            # verl turned the cache off when engines that started together damaged its files. The
            # torch that is pinned here writes each file under another name and renames it.
            defaults[COMPILE_CACHE_IS_OFF] = "0"
        for name, value in defaults.items():
            # The user's value takes precedence over these defaults.
            variables[name] = os.environ.get(name, value)
    if config.batch_invariant(device):
        variables[BATCH_INVARIANT] = "1"  # vLLM reads it during its import, also in a standby
    return variables
