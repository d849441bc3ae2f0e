"""Ray's workers as forks: of a process that has imported what they need, ended with the run, replaced where needed."""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from harness.config import load_config
from harness.rollout.processes import RUN_MARK, marked, sweep
from harness_verl import fork_client, forks
from harness_verl.standby import ForkServer
from harness_verl.trainer import VerlTrainer

DRIVER = """
import json, os, signal, sys, time

from harness_verl import forks
from harness_verl.driver import start_no_more_than_needed

name = forks.serve(["sqlite3.dump", "no.such.module"])
import ray

server = max(int(entry) for entry in open(f"/proc/self/task/{os.getpid()}/children").read().split())
forks.stand_in(name)
start_no_more_than_needed()
ray.init(address="local", num_cpus=3, include_dashboard=False)

@ray.remote
class Worker:
    def told(self):
        return {
            "pid": os.getpid(), "parent": os.getppid(), "preloaded": "sqlite3.dump" in sys.modules,
            "mine": os.environ.get("MINE"), "main": sys.modules["__main__"].__file__,
        }

first = Worker.remote()
second = Worker.options(runtime_env={"env_vars": {"MINE": "yes"}}).remote()
told = ray.get([first.told.remote(), second.told.remote()])
ray.kill(second)
while os.path.exists(f"/proc/{told[1]['pid']}"):
    time.sleep(0.05)
os.kill(server, signal.SIGKILL)
os.waitpid(server, 0)
third = ray.get(Worker.options(runtime_env={"env_vars": {"MINE": "too"}}).remote().told.remote())
print(json.dumps({"server": server, "told": [*told, third]}), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("device", "deterministic", "address", "possible"),
    [
        ("cpu", False, "local", True),
        ("cuda", False, "local", True),
        ("npu", False, "local", False),
        ("cuda", True, "local", False),
        ("cpu", True, "local", True),
        ("cpu", False, "10.0.0.1:6379", False),
        ("cpu", False, None, False),
    ],
)
def test_only_workers_of_the_runs_own_ray_are_forks(
    device: str, deterministic: bool, address: str | None, possible: bool
) -> None:
    assert forks.possible(device, address, deterministic) is (possible and sys.platform == "linux")


SPAWNS = """
import concurrent.futures, json, multiprocessing, os, subprocess, sys

from harness_verl import fork_client, forks

ABOUT = "[__import__('os').getppid(), 'sqlite3.dump' in __import__('sys').modules, __import__('os').environ['MINE']]"

if __name__ == "__main__" and sys.argv[1:] == ["worker"]:
    os.environ["MINE"] = "the worker's"
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        print(json.dumps([os.getpid(), *pool.submit(eval, ABOUT).result()]))
elif __name__ == "__main__":
    os.environ[fork_client.SERVER] = forks.serve(["sqlite3.dump"], sys.argv[1])
    server = max(int(entry) for entry in open(f"/proc/self/task/{os.getpid()}/children").read().split())
    command = [sys.executable, str(forks.CLIENT), fork_client.HANDED, __file__, "worker"]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    print(json.dumps([server, *json.loads(answer)]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks of a server are for Linux")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_a_worker_spawns_is_a_fork_too_unless_cuda_cannot_be_started_in_one(
    device: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SPAWNS)
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(script), device], capture_output=True, text=True, env=hidden
    )
    assert done.returncode == 0, done.stderr
    server, worker, parent, preloaded, mine = json.loads(done.stdout)
    assert mine == "the worker's"
    assert (parent, preloaded) == ((server, True) if device == "cpu" else (worker, False))


IDS = """
from harness_verl import forks

forks.import_ray()
import ray

with forks.unseeded_ids():
    ray.remote(type("Worker", (), {}))
print(forks.ids_differ_in_forks())
ray.remote(type("Worker", (), {}))
print(forks.ids_differ_in_forks())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks of a server are for Linux")
def test_forks_of_a_process_in_which_ray_drew_no_id_draw_different_ones() -> None:
    done = subprocess.run([sys.executable, "-c", IDS], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"], done.stderr


ENDS = """
import atexit, os, subprocess, sys

from harness_verl.driver import _end

atexit.register(_end, os.getpid())
beside = subprocess.Popen(["sleep", "600"])
if not os.fork():
    sys.exit()
os.wait()
print(beside.pid, beside.poll(), flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks of a server are for Linux")
def test_a_worker_that_ends_takes_nothing_of_its_drivers_along() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS], capture_output=True, text=True, start_new_session=True
    )
    sibling, status = done.stdout.split()
    assert status == "None", done.stderr
    wait_until(
        lambda: (
            not psutil.pid_exists(int(sibling)) or psutil.Process(int(sibling)).status() == "zombie"
        )
    )


@pytest.mark.skipif(sys.platform != "linux", reason="forks of a server are for Linux")
def test_a_client_without_a_server_becomes_what_it_stood_for(tmp_path: Path) -> None:
    script = tmp_path / "setup_worker.py"
    script.write_text(
        "import os, sys; print(sys.argv[1:], os.environ['MINE'], 'site' in sys.modules)"
    )
    variables = {**os.environ, fork_client.SERVER: "harness-of-nobody", "MINE": "of old"}

    def output_of(*arguments: str) -> str:
        command = [sys.executable, "-S", "-E", str(forks.CLIENT), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, env=variables
        ).stdout.strip()

    assert output_of(fork_client.HANDED + "3 4", str(script), "a b") == "['a b'] of old True"
    worker = [str(tmp_path / "default_worker.py"), "a b", "--language=PYTHON"]
    context = "--serialized-runtime-env-context=" + json.dumps({"env_vars": {"MINE": "new"}})
    assert output_of(*worker, context) == f"{[*worker, context]} of old True"


@pytest.mark.skipif(sys.platform != "linux", reason="forks of a server are for Linux")
@pytest.mark.parametrize("starts", [True, False])
def test_a_client_that_passed_a_signal_on_starts_no_second_worker(starts: bool) -> None:
    """The signal arrives when the worker has just ended: before or after it could start."""
    name = forks.new_name()
    command = [sys.executable, "-S", "-E", str(forks.CLIENT), fork_client.HANDED]
    command += ["-c", "print('a second worker')"]
    variables = {**os.environ, fork_client.SERVER: name}
    with forks.listen(name) as listener:
        client = subprocess.Popen(command, stdout=subprocess.PIPE, env=variables)
        connection, _ = listener.accept()
    with connection, subprocess.Popen(["sleep", "600"]) as worker:
        header, streams, _, _ = socket.recv_fds(connection, 4, forks.MOST_FILES)
        with connection.makefile("rb") as reader:
            reader.read(int.from_bytes(header, "big"))
        connection.sendall(worker.pid.to_bytes(4, "big"))
        connection.recv(1, 0 if starts else socket.MSG_PEEK)  # unread, it resets the connection
        worker.kill()
        worker.wait()
        client.terminate()
        time.sleep(0.5)  # it has handled the signal
        for stream in streams:
            os.close(stream)
    assert client.communicate(timeout=30)[0] == b""


@pytest.mark.parametrize(
    ("environment", "simple"),
    [
        ({}, True),
        (
            {
                "env_vars": {"MINE": "${MINE}/2${NEVER_SET}"},
                "py_executable": sys.executable,
                "java_jars": [],
            },
            True,
        ),
        ({"env_vars": {"MINE": "1/2"}, "py_executable": "uv run"}, False),
        ({"env_vars": {"MINE": "1/2"}, "command_prefix": ["nsys profile"]}, False),
    ],
)
def test_a_worker_is_a_fork_where_its_environment_is_variables_alone(
    environment: dict[str, Any], simple: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "1")
    assert (
        fork_client.set_up(fork_client.CONTEXT + (json.dumps(environment) if environment else ""))
        is simple
    )
    assert os.environ["MINE"] == ("1/2" if environment else "1")


@pytest.mark.train
@pytest.mark.timeout(240)
@pytest.mark.skipif(sys.platform != "linux", reason="forks of a server are for Linux")
def test_workers_are_forks_with_a_life_of_their_own_and_end_with_the_driver(tmp_path: Path) -> None:
    script, errors = tmp_path / "driver.py", tmp_path / "errors"
    script.write_text(DRIVER)
    with errors.open("wb") as log:
        driver = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=log)
    try:
        assert driver.stdout is not None
        line = driver.stdout.readline()
        assert line, errors.read_text()
        found = json.loads(line)
    finally:
        driver.kill()
        driver.wait()
    first, second, third = found["told"]
    assert [worker["parent"] for worker in (first, second)] == [found["server"]] * 2
    assert [worker["preloaded"] for worker in (first, second, third)] == [True, True, False]
    assert [worker["mine"] for worker in (first, second, third)] == [None, "yes", "too"]
    assert {Path(worker["main"]).name for worker in (first, second, third)} == {"default_worker.py"}
    wait_until(lambda: not any(psutil.pid_exists(worker["pid"]) for worker in (first, third)))


def wait_until(true: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_what_changed_on_disk_is_no_longer_what_was_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "loaded_here.py"
    module.write_text("")
    packages = tmp_path / "site-packages"
    packages.mkdir()
    for path in (module, packages):
        os.utime(path, ns=(1, 1))
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(packages)])
    monkeypatch.setattr(sys, "modules", {"loaded_here": importlib.import_module("loaded_here")})
    loaded = forks.Loaded()
    loaded.note()
    assert loaded.unchanged()
    for path in (module, packages):
        os.utime(path, ns=(2, 2))
        assert not loaded.unchanged()
        os.utime(path, ns=(1, 1))
        assert loaded.unchanged()
    (tmp_path / "launcher.so").write_text("")  # compiled while it was imported
    launcher = SimpleNamespace(__file__=str(tmp_path / "launcher.so"))
    monkeypatch.setitem(sys.modules, "launcher", launcher)
    loaded.note()
    assert loaded.unchanged()
    os.utime(launcher.__file__, ns=(1, 1))
    assert not loaded.unchanged()
    os.utime(module)  # changed while it was imported
    loaded.note()
    assert not loaded.unchanged()
    module.unlink()
    assert not loaded.unchanged()


RUN = """
import concurrent.futures, json, os, sys, time
import ray

from harness_verl import fork_client, forks
from harness_verl.driver import start_no_more_than_needed

forks.stand_in(sys.argv[1])
start_no_more_than_needed()
ray.init(address="local", num_cpus=2, include_dashboard=False)

def draw():
    return ray._raylet.UniqueID.from_random().hex()

@ray.remote
class Worker:
    def told(self):
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            ids = [draw(), thread.submit(draw).result()]
        return [os.getpid(), os.getppid(), "verl" in sys.modules, os.environ["HARNESS_RUN_MARK"], *ids]

workers = [Worker.remote(), Worker.remote()]
print(json.dumps(ray.get([worker.told.remote() for worker in workers])), flush=True)
if len(sys.argv) > 2:
    time.sleep(600)
"""
STUDY = """
import os, sys, time
from harness.config import load_config
from harness_verl.trainer import VerlTrainer

standby = VerlTrainer().standby(load_config("cpu", agent="reference_sql"), os.environ)
print(standby._process.pid, standby.variables["HARNESS_STANDBY"].split()[0], flush=True)
time.sleep(600)
"""


def run(
    script: Path, name: str, mark: str, *more: str
) -> tuple[subprocess.Popen[str], list[list[Any]]]:
    """A run on the server of this name, and what its workers told."""
    script.write_text(RUN)
    process = subprocess.Popen(
        [sys.executable, str(script), name, *more],
        env={**os.environ, RUN_MARK: mark},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


@pytest.mark.train
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="forks of a server are for Linux")
def test_a_training_alone_imports_for_its_workers_while_it_is_checked(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    command = [sys.executable, "-m", "harness", "train", "--ci-fast", "--agent", "reference_sql"]
    command += ["--runs-dir", str(tmp_path / "runs"), "--trace-start", str(trace)]
    environment = {name: value for name, value in os.environ.items() if name != forks.STANDBY}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]

    events = json.loads(trace.read_text())
    processes = {}
    for event in events:
        if event["name"] == "process_name":
            processes[event["pid"]] = event["args"]["name"]
    servers = [pid for pid, name in processes.items() if name == "server of forks"]
    assert len(servers) == 1  # the driver started none of its own
    (created,) = [
        event["ts"]
        for event in events
        if event["pid"] == servers[0] and event["name"] == "Python and imports"
    ]
    (identified,) = [event["ts"] for event in events if event["name"] == "identity of the run"]
    assert created < identified
    assert not psutil.pid_exists(servers[0])


def test_a_training_that_finds_preloaded_modules_loads_none(server: ForkServer) -> None:
    environment = {**os.environ, **server.variables}
    assert VerlTrainer().standby(load_config("cpu", agent="reference_sql"), environment) is None


@pytest.mark.train
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="forks of a server are for Linux")
def test_runs_of_a_study_share_a_server_that_outlives_each_and_not_the_study(
    tmp_path: Path, server: ForkServer
) -> None:
    script = tmp_path / "run.py"
    name, _, kind = server.variables[forks.STANDBY].partition(" ")
    other = VerlTrainer().standby(
        load_config("cpu", agent="reference_sql", overrides=["gpus=2"]), os.environ
    )
    assert isinstance(other, ForkServer)
    assert not other.variables[forks.STANDBY].endswith(
        kind
    )  # its runs are to see two entries for GPUs
    other.close()
    assert not other.fresh()

    first, workers = run(script, name, "first")
    first.wait()
    made_by = server._process.pid
    assert [worker[1:4] for worker in workers] == [[made_by, True, "first"]] * 2
    # Who draws equal ids at once dies, and Ray waits for it without end; each thread has a source of its own.
    assert len({drawn for worker in workers for drawn in worker[4:]}) == 4
    wait_until(lambda: not marked("first"))
    wait_until(server.fresh)
    second, workers = run(script, name, "a-mark-of-another-length", "stay")
    assert [worker[1:4] for worker in workers] == [[made_by, True, "a-mark-of-another-length"]] * 2
    assert {worker[0] for worker in workers} <= {
        process.pid for process in marked("a-mark-of-another-length")
    }
    second.kill()  # its Ray ends at once and cannot stop its workers
    second.wait()
    wait_until(lambda: not any(psutil.pid_exists(worker[0]) for worker in workers))
    sweep("a-mark-of-another-length")  # Ray's agent waits a minute for a GCS that has ended
    assert server.fresh()


@pytest.mark.train
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="forks of a server are for Linux")
@pytest.mark.parametrize("waits", [True, False])
def test_a_fork_runs_nothing_before_its_client_can_pass_signals_on(
    waits: bool, tmp_path: Path, server: ForkServer
) -> None:
    script, trace = tmp_path / "script.py", tmp_path / "trace"
    script.write_text(f"open({str(trace)!r}, 'w')")
    fields = [str(tmp_path), "", "1", str(script), f"{RUN_MARK}=a-run"]
    message = "\0".join(fields).encode()
    wait_until(server.fresh, 200)
    with socket.socket(socket.AF_UNIX) as client, open(os.devnull, "r+b") as nowhere:
        client.connect("\0" + server.variables[forks.STANDBY].split()[0])
        socket.send_fds(client, [len(message).to_bytes(4, "big")], [nowhere.fileno()] * 3)
        client.sendall(message)
        fork = int.from_bytes(client.recv(4), "big")
        assert psutil.pid_exists(fork)
        if waits:
            client.sendall(b"\1")
            assert not client.recv(1)
    wait_until(lambda: not psutil.pid_exists(fork))
    assert trace.exists() is waits


@pytest.mark.train
@pytest.mark.timeout(240)
@pytest.mark.skipif(sys.platform != "linux", reason="forks of a server are for Linux")
def test_a_server_outlives_a_killed_study_as_long_as_a_run_needs_it(tmp_path: Path) -> None:
    study = subprocess.Popen([sys.executable, "-c", STUDY], stdout=subprocess.PIPE, text=True)
    assert study.stdout is not None
    server, name = study.stdout.readline().split()
    left, workers = run(tmp_path / "run.py", name, "left-by-the-study", "stay")
    study.kill()
    study.wait()
    time.sleep(3 * forks.LOOK_S)
    assert all(psutil.pid_exists(pid) for pid in (int(server), *(worker[0] for worker in workers)))
    left.kill()
    left.wait()
    sweep("left-by-the-study")
    wait_until(lambda: not psutil.pid_exists(int(server)))


def test_workers_import_the_backend_of_the_installed_queue_too() -> None:
    modules = list(forks.preloaded("cpu"))
    assert modules[:-1] == list(forks.PRELOADED["cpu"])
    assert modules[-1] == "harness_agentlightning_queue.backend"
