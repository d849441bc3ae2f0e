"""The process in which verl runs: `python -m harness_verl.driver DATA_DIR`.

Composes `verl-settings.yaml` over verl's defaults and saves the result next to it as `verl.yaml`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

WATCH_S = 1.0
START_S = 300.0
"""Seconds for Ray's start, which would wait forever if one of its processes died."""
NODE_S = 240.0
"""Seconds that Ray's node agent may take to register while its process runs; Ray waits for 30."""
NODE_EVERY_S = 0.2
TRIES = 3
"""Attempts to start Ray before a run fails."""
VERLS_OWN_S = 5.0
"""Seconds for verl to end by itself after an actor died, since its own message says more."""
POLICY_SERVERS = ("VerlPolicyServer", "vLLMHttpServer")
"""Actors that answer the calls of agents: harness's on a CPU, verl's on GPUs."""
NO_AGENT = Path(__file__).with_name("no_agent.py")
OURS = "harness: "
"""Prefix of the log line that states why a run ends."""


def main() -> None:
    """Run verl's own V1 task runner on a composed configuration."""
    from harness.rollout.processes import die_with_parent

    die_with_parent(signal.SIGTERM)
    if os.getpgrp() == os.getpid():
        atexit.register(
            _end, os.getpid()
        )  # after Ray's own cleanup, because its agents wait a minute for a GCS that has ended

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)  # Ray's exit handlers stop what it started

    signal.signal(signal.SIGTERM, leave)

    import yaml

    from harness.errors import ConfigError
    from harness.util import start_trace
    from harness.util.parsing import at
    from harness_verl import forks

    start_trace.born("verl's driver")

    data_dir = Path(sys.argv[1])
    settings = yaml.safe_load((data_dir / "verl-settings.yaml").read_text(encoding="utf-8"))
    standby, server, device = os.environ.pop(forks.STANDBY, ""), "", at(settings, "trainer.device")
    deterministic = at(settings, "actor_rollout_ref.rollout.full_determinism", False)
    if forks.possible(device, at(settings, "ray_kwargs.ray_init.address"), deterministic):
        # A server imports verl while Ray starts.
        server = standby or forks.serve(forks.preloaded(device), device)
    import ray
    from omegaconf import OmegaConf

    from harness_verl.verl_config import compose

    with start_trace.span("configuration"):
        config = compose(settings)
        OmegaConf.save(config, data_dir / "verl.yaml", resolve=True)
    if at(settings, "ray_kwargs.ray_init.address") == "local":
        start_no_more_than_needed()
    ray.init = patient(ray.init)
    over = threading.Event()
    for look in (watch, watch_node):
        threading.Thread(target=look, args=(over,), daemon=True).start()
    if server:
        forks.stand_in(server)
    try:
        if server and not asks_verl(config):
            run_on_forks(config)
        else:
            from verl.trainer.main_ppo import TaskRunnerV1, run_ppo

            from harness_verl.tasks import checked

            run_ppo(checked(config), task_runner_class=TaskRunnerV1)
    except ConfigError as error:
        # From the task runner it comes as a class of Ray's, which has the error as its cause.
        sys.stderr.write(f"{OURS}{getattr(error, 'cause', error)}\n")
        sys.exit(1)
    over.set()


def _end(driver: int) -> None:
    """End the driver's processes if the driver itself ends, and not a fork of it."""
    from harness.rollout.processes import end_group

    if os.getpid() == driver:
        end_group(driver)


def asks_verl(config: Any) -> bool:
    """Return whether only verl's own `run_ppo` can set up workers: for Megatron or profilers."""
    return (
        bool(config.global_profiler.tool) or config.actor_rollout_ref.actor.strategy == "megatron"
    )


def run_on_forks(config: Any) -> None:
    """Do verl's `run_ppo` without importing verl: its task runner is a fork of a process that has.

    Args:
        config: verl's, an OmegaConf `DictConfig`.
    """
    import ray
    from omegaconf import OmegaConf

    from harness.errors import last_line
    from harness.util import start_trace
    from harness_verl.tasks import TaskRunner

    options: Any = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
    options.setdefault("runtime_env", {}).setdefault("env_vars", {})["TRANSFER_QUEUE_ENABLE"] = "1"
    with start_trace.span("Ray"):
        ray.init(**options)
    runner = ray.remote(TaskRunner).remote()
    try:
        ray.get(runner.run.remote(config))
    except (
        ray.exceptions.ActorDiedError
    ) as error:  # Ray's message begins with consequences of the error
        if isinstance(
            error, ray.exceptions.RayTaskError
        ):  # the death of another actor, as seen by the task runner
            raise
        sys.stderr.write(f"{OURS}verl's task runner died: {last_line(str(error))}\n")
        sys.exit(1)


def start_no_more_than_needed() -> None:
    """Start the run's own Ray without the autoscaler's monitor, the dashboard and its agent.

    No run needs scaling or the page, and `include_dashboard=False` alone still starts its server.
    """
    from ray._private import ray_constants, services
    from ray._private.node import Node

    def no_server(node: Any, **options: Any) -> None:
        node._webui_url = None

    def command(component: str, *arguments: Any) -> list[str]:
        agent = component == ray_constants.PROCESS_TYPE_DASHBOARD_AGENT
        return (
            [sys.executable, "-S", "-E", str(NO_AGENT)]
            if agent
            else [*python(component, *arguments)]
        )

    Node.start_monitor = lambda node: None
    Node.start_api_server = no_server
    python = services._build_python_executable_command_memory_profileable
    services._build_python_executable_command_memory_profileable = command


def patient(start: Callable[..., object]) -> Callable[..., Any]:
    """Return `ray.init` that waits for Ray's processes and restarts them if they are gone.

    Ray gives its node agent 30 s to register. A restart would cost a busy machine the same work
    again, so the first start waits for as long as the agent's process runs, up to `NODE_S`.
    """

    def again(*arguments: Any, **options: Any) -> Any:
        for left in reversed(range(TRIES)):
            try:
                with waiting_for_the_node():
                    return start(*arguments, **options)
            except Exception as error:
                if not left or "timed out during startup" not in str(error):
                    raise
                sys.stderr.write(
                    "Ray's node agent did not register (a busy machine?): trying again\n"
                )
                # Processes of the failed start would disturb the next one.
                for process in psutil.Process().children(recursive=True):
                    with contextlib.suppress(psutil.Error):
                        process.kill()
        raise AssertionError("unreachable")

    return again


@contextlib.contextmanager
def waiting_for_the_node() -> Iterator[None]:
    """Have Ray's start wait for its node agent while the agent's process runs, at most `NODE_S`."""
    from ray._private import services

    get_node = services.get_node

    def get_node_in_time(*arguments: Any) -> Any:
        deadline = time.monotonic() + NODE_S
        while True:
            try:
                return get_node(*arguments)
            except RuntimeError:
                if time.monotonic() > deadline or not node_agent_runs():
                    raise
            time.sleep(NODE_EVERY_S)

    services.get_node = get_node_in_time
    try:
        yield
    finally:
        services.get_node = get_node


def node_agent_runs() -> bool:
    """Return whether a child of this process is Ray's node agent, `raylet`."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.name() == "raylet" and process.status() != psutil.STATUS_ZOMBIE:
                return True
    return False


def watch(over: threading.Event) -> None:
    """End this process if an actor of the run dies or Ray does not start; until `over`.

    verl gives its agent-loop workers prompts and then polls TransferQueue for the results without
    end. It never learns that a worker died.
    """
    import ray
    from ray._private import state, worker

    began = time.monotonic()
    while not ray.is_initialized():
        if time.monotonic() - began > START_S:
            _leave(
                f"Ray did not start within {START_S:g} s; its logs are next to this one, ray-*",
                over,
            )
        time.sleep(WATCH_S)
    while not over.wait(WATCH_S):
        try:
            dead = state.actors(job_id=worker.global_worker.current_job_id, actor_state_name="DEAD")
        except Exception:  # Ray itself has ended, which also ends this process
            continue
        causes = []
        for actor in dead.values():
            # verl handles ends that it notices, so they have no cause here.
            if cause := cause_of_death(actor):
                causes.append(cause)
        if causes:
            _leave("; ".join(causes), over)


def watch_node(over: threading.Event) -> None:
    """End this process if one of Ray's own processes dies; until `over`.

    Ray waits a minute for a lost GCS to come back, and every request to it waits as well.
    """
    import ray
    from ray._private import worker

    while not over.wait(WATCH_S):
        node = worker._global_node if ray.is_initialized() else None
        for name in ("gcs_server", "raylet"):
            for started in (node.all_processes if node else {}).get(name, ()):
                if (status := started.process.poll()) is not None:
                    _leave(
                        f"Ray's {name} (process {started.process.pid}) ended with status {status}",
                        over,
                    )


def _leave(reason: str, over: threading.Event) -> None:
    sys.stderr.write(f"{OURS}{reason}\n")
    sys.stderr.flush()
    if not over.wait(VERLS_OWN_S):
        os._exit(1)  # the main thread would wait forever for an answer


def cause_of_death(actor: dict[str, Any]) -> str:
    """Return the cause in Ray's table for a dead actor; empty if verl notices its end."""
    what = "policy server" if actor["ActorClassName"] in POLICY_SERVERS else "actor"
    cause, name = actor["DeathCause"], f"{what} {actor['ActorClassName']} {actor['Name']}".strip()
    kind = cause.WhichOneof("context")
    if kind == "oom_context":
        return (
            f"Ray ended {name} (process {actor['Pid']}) because of a lack of memory: "
            f"{cause.oom_context.error_message}"
        )
    died = cause.actor_died_error_context
    unmeant = kind == "actor_died_error_context" and died.Reason.Name(died.reason) in (
        "WORKER_DIED",
        "NODE_DIED",
    )
    if not unmeant or "INTENDED_" in died.error_message:
        return ""
    detail = died.error_message.strip().splitlines()[0].partition(" Some common causes")[0]
    return f"{name} (process {actor['Pid']}) died: {detail}"


if __name__ == "__main__":
    main()
