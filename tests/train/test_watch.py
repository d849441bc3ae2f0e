"""A run that cannot go on ends, and says why: a dead Ray actor, a killed driver, a full disk. Real Ray, real logs."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.config import load_config
from harness.errors import EnvironmentProblem, RunFailed
from harness.runs.folder import RunFolder
from harness_verl import run as module
from harness_verl.run import VerlRun, last_error, temporary_room
from harness_verl.trainer import _place

WARNING = (
    "(TaskRunnerV1 pid=411) /venv/verl/workers/engine/__init__.py:69: UserWarning: megatron engine is not available: "
    "ModuleNotFoundError(\"No module named 'megatron'\")\n"
    '(TaskRunnerV1 pid=411)   warnings.warn(f"megatron engine is not available: {e!r}", stacklevel=1)\n'
)
RAYLET = """\
\x1b[33m(raylet)\x1b[0m The node with node id: 08bf3fba0035e88fdfaec7b45b4e3fa67e0b0b4c has been marked dead
\x1b[33m(raylet)\x1b[0m Raylet is terminated. Termination is unexpected. Possible reasons include: (1) SIGKILL by the
    [2026-11-21 21:34:02,568 I 31250 31250] (raylet) worker_pool.cc:564: Started worker process with pid 31386

Traceback (most recent call last):
  File "/venv/ray/_private/worker.py", line 1055, in get_objects
    raise value
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
\tclass_name: TaskRunnerV1
\tactor_id: 889d47ad8c070b3be1095dc101000000
\tpid: 31386
"""
FULL = """\
(TaskRunnerV1 pid=411)   File "/venv/torch/serialization.py", line 967, in save
(TaskRunnerV1 pid=411) OSError: [Errno 28] No space left on device
(TaskRunnerV1 pid=411) During handling of the above exception, another exception occurred:
Traceback (most recent call last):
ray.exceptions.RayTaskError(RuntimeError): \x1b[36mray::TaskRunnerV1.run()\x1b[39m (pid=411, ip=192.0.2.2)
RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0
"""
HYDRA = """\
hydra.errors.InstantiationException: Error in call to target 'verl.M':
OSError('no /m')
full_key: actor_rollout_ref.model
"""
ENDED = """\
Traceback (most recent call last):
  File "/venv/ray/_private/node.py", line 440, in __init__
    raise Exception(
Exception: The current node timed out during startup.
(raylet) some Error of a process that was on its way out
"""


@pytest.mark.parametrize(
    ("log", "status", "cause"),
    [
        (WARNING, -9, "it was killed by SIGKILL"),
        (WARNING + ENDED, -9, "it was killed by SIGKILL"),
        (WARNING + "Training Progress: 10%\n", 1, "Training Progress: 10%"),
        (WARNING + RAYLET, 1, "Raylet is terminated. Termination is unexpected."),
        (WARNING + FULL, 1, "OSError: [Errno 28] No space left on device"),
        (WARNING + FULL, -9, "OSError: [Errno 28] No space left on device"),
        (WARNING + ENDED, 1, "Exception: The current node timed out during startup."),
        (
            WARNING + HYDRA,
            1,
            "hydra.errors.InstantiationException: Error in call to target 'verl.M': OSError('no /m')",
        ),
        ("harness: actor A (process 7) died: why\n" + ENDED, 1, "actor A (process 7) died: why"),
        (WARNING, 1, "no output"),
        ("", 1, "no output"),
    ],
)
def test_the_line_that_names_the_cause_is_quoted_and_never_a_warning(
    tmp_path: Path, log: str, status: int, cause: str
) -> None:
    path = tmp_path / "verl.log"
    path.write_text(log, encoding="utf-8")
    assert last_error(path, status).startswith(cause)


DRIVER = """
import os, signal, threading, time
import ray
from harness_verl import driver

@ray.remote
class Worker:
    def pid(self): return os.getpid()

threading.Thread(target=driver.watch, args=(threading.Event(),), daemon=True).start()
driver.start_no_more_than_needed()
ray.init(address="local", include_dashboard=False, num_cpus=2, object_store_memory=100_000_000)
worker, meant = Worker.options(name="agent_loop_worker_0").remote(), Worker.options(name="meant").remote()
pid, _ = ray.get([worker.pid.remote(), meant.pid.remote()])
ray.kill(meant)
time.sleep(3)
print("alive", flush=True)
os.kill(pid, signal.SIGKILL)
time.sleep(600)  # as verl: nothing it waits for says that the worker is gone
"""


@pytest.mark.train
@pytest.mark.timeout(240)
def test_a_killed_actor_that_nobody_waits_for_ends_the_driver(tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    log = tmp_path / "verl.log"
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, str(script)], stdout=output, stderr=output)
        try:
            while process.poll() is None and "alive" not in log.read_text():
                time.sleep(0.1)
            assert process.poll() is None, (
                log.read_text()
            )  # an actor that was meant to end is no reason
            assert process.wait(60) == 1
        finally:
            process.kill()
    assert last_error(log).startswith("actor Worker agent_loop_worker_0 (process ")
    assert "meant" not in last_error(log)


def test_a_dead_policy_server_is_called_what_it_is() -> None:
    from ray.core.generated.common_pb2 import ActorDeathCause

    from harness_verl.driver import cause_of_death

    cause = ActorDeathCause()
    cause.actor_died_error_context.reason = cause.actor_died_error_context.Reason.Value(
        "WORKER_DIED"
    )
    cause.actor_died_error_context.error_message = "Its process has ended.\nMore of it."
    for kind, what in (
        ("vLLMHttpServer", "policy server"),
        ("VerlPolicyServer", "policy server"),
        ("W", "actor"),
    ):
        actor = {"ActorClassName": kind, "Name": "n", "Pid": 7, "DeathCause": cause}
        assert cause_of_death(actor) == f"{what} {kind} n (process 7) died: Its process has ended."


class FailingRun:
    """A run too many of whose rollouts failed."""

    model, done, roles = "m", 0, {}  # type: ignore[var-annotated]

    def __init__(self, folder: RunFolder) -> None:
        self.config, self.folder = load_config("cpu", agent="reference_sql"), folder

    def poll(self) -> None:
        raise RunFailed("12 of 16 rollouts brought no usable result (endpoint_error 12)")


@pytest.fixture
def failing(tmp_path: Path) -> VerlRun:
    folder = RunFolder(tmp_path / "run")
    folder.logs.mkdir(parents=True)
    log = folder.logs / "verl.log"
    log.write_text(
        "harness: actor A (process 1) died: in an earlier launch, RuntimeError: can't start new thread\n"
    )
    driver: Any = None
    run: Any = FailingRun(folder)
    return VerlRun(
        run, "mark", driver, tmp_path / "session", log.stat().st_size, tmp_path / "scratch"
    )


def test_what_died_is_named_and_not_only_what_followed_from_it(failing: VerlRun) -> None:
    def say() -> None:
        with failing._log.open("a") as log:
            log.write("harness: policy server S (process 7) died: why\n")

    speaks = threading.Timer(0.5, say)
    speaks.start()
    with pytest.raises(RunFailed, match=r"^policy server S \(process 7\) died: why \(whole log"):
        failing._look()
    speaks.join()


def test_rollouts_that_fail_while_nothing_died_are_the_reason(
    failing: VerlRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CAUSE_S", 0.1)
    with pytest.raises(RunFailed, match="endpoint_error 12"):
        failing._look()


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("run/logs/verl.log", "RuntimeError: can't start new thread"),
        (
            "scratch/ray/session_2026/logs/raylet.err",
            "x: St12system_error. what(): Resource temporarily unavailable /x",
        ),
        (
            "scratch/ray/session_2026/logs/gcs_server.out",
            "thd.cc:157] pthread_create failed: Resource temporarily",
        ),
    ],
)
def test_a_machine_that_gives_no_more_threads_ends_the_run(
    failing: VerlRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, message: str
) -> None:
    monkeypatch.setattr(failing._live, "poll", lambda: None)
    failing._look()  # an earlier launch said so
    log = tmp_path / where
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        file.write("zmq.error.Again: Resource temporarily unavailable\n")
    failing._look()
    with log.open("a") as file:
        file.write(f"line\n{message}")
    with pytest.raises(
        RunFailed, match=r"no further thread or process can be started: raise the limit \(ulimit -u"
    ):
        failing._look()


def test_a_ray_that_was_slow_to_start_is_started_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness_verl import driver
    from harness_verl.driver import TRIES, patient

    class Alone:  # the children of this process are other tests'
        def children(self, recursive: bool) -> list[Any]:
            return []

    monkeypatch.setattr(driver.psutil, "Process", Alone)

    late = "The current node timed out during startup. This could happen because some of the raylet failed"
    tries: list[str] = []

    def start(address: str, fails: int, message: str = late) -> str:
        tries.append(address)
        if len(tries) <= fails:
            raise Exception(message)
        return "up"

    assert patient(start)("local", fails=1) == "up" and len(tries) == 2
    assert "trying again" in capsys.readouterr().err
    for fails, message, expected in ((9, late, TRIES), (9, "no space left on device", 1)):
        tries.clear()
        with pytest.raises(Exception, match=message[:20]):
            patient(start)("local", fails=fails, message=message)
        assert len(tries) == expected


@pytest.mark.parametrize("runs", [True, False])
def test_a_start_waits_for_the_node_agent_while_its_process_runs(
    runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray._private import services

    from harness_verl import driver

    asked: list[str] = []

    def get_node(address: str) -> str:
        asked.append(address)
        if len(asked) < 4:
            raise RuntimeError("no node yet")
        return "node"

    monkeypatch.setattr(services, "get_node", get_node)
    monkeypatch.setattr(driver, "node_agent_runs", lambda: runs)
    monkeypatch.setattr(driver, "NODE_EVERY_S", 0.0)
    with driver.waiting_for_the_node():
        if runs:
            assert services.get_node("local") == "node" and len(asked) == 4
        else:
            with pytest.raises(RuntimeError):
                services.get_node("local")
    assert services.get_node is get_node


@pytest.mark.parametrize("name", ["TMPDIR", "RAY_TMPDIR"])
def test_ray_gets_a_folder_whose_name_leaves_room_for_its_sockets(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    for folder, given in ((Path("/tmp"), "/tmp"), (tmp_path / ("x" * 40), "/tmp")):
        folder.mkdir(exist_ok=True)
        monkeypatch.setenv(name, str(folder))
        monkeypatch.setattr(tempfile, "tempdir", None)
        assert _place() == given


def test_a_place_for_temporary_files_that_cannot_be_made_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/proc/none")
    with pytest.raises(
        EnvironmentProblem, match="no temporary files can be made in /proc/none: .*; set TMPDIR"
    ):
        _place()


def test_a_full_place_for_temporary_files_is_named(small_disk: Callable[[str], Path]) -> None:
    place = small_disk("2m")
    (place / "filler").write_bytes(b"x" * 2**20)
    message = temporary_room(place)
    assert message.startswith(f"Ray's temporary files are in {place} (1.0 of 2.0 MiB free) and ")
    assert message.endswith("make room there, or set TMPDIR")
