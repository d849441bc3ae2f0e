"""Ray's workers as forks: of a process that has imported what they need, ended with the run, replaced where needed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.trainers.verl import forks

DRIVER = """
import json, os, signal, sys, time

from harness.trainers.verl import forks

command = forks.serve(["sqlite3.dump", "no.such.module"])
import ray

server = max(int(entry) for entry in open(f"/proc/self/task/{os.getpid()}/children").read().split())
ray.init(address="local", num_cpus=3, include_dashboard=False, runtime_env={"py_executable": command})

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
    ("device", "address", "possible"),
    [("cpu", "local", True), ("cuda", "local", False), ("cpu", "10.0.0.1:6379", False), ("cpu", None, False)],
)
def test_only_workers_of_the_runs_own_ray_on_a_cpu_are_forks(device: str, address: str | None, possible: bool) -> None:
    settings: dict[str, Any] = {"trainer": {"device": device}, "ray_kwargs": {"ray_init": {"address": address}}}
    assert forks.possible(settings) is (possible and sys.platform == "linux")


@pytest.mark.skipif(sys.platform != "linux", reason="forks of a server are for Linux")
def test_a_client_without_a_server_becomes_the_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.argv[1:], 'site' in sys.modules)")
    command = [sys.executable, "-S", "-E", str(forks.CLIENT), "harness-of-nobody", str(script), "a b"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "['a b'] True"


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
    deadline = time.monotonic() + 30
    while (left := [pid for pid in (first["pid"], third["pid"]) if psutil.pid_exists(pid)]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.2)
    assert not left
