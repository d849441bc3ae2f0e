"""A tracking server of MLflow: the real package, in an environment of its own, whose pins are not this one's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from harness.errors import find_uv

VARIABLE = "HARNESS_MLFLOW_PYTHON"
MLFLOW = "mlflow==3.17.2"
"""The version of mlflow-skinny in the lock."""


@dataclass
class Mlflow:
    """A server that can be killed and started again, at the same port, over the same files."""

    python: Path
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it; returns once it answers."""
        store, log = f"sqlite:///{self.folder}/store.db", self.folder / "log"
        command = [str(self.python), "-m", "mlflow", "server", "--backend-store-uri", store]
        command += ["--artifacts-destination", str(self.folder / "artifacts"), "--workers", "1"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        environment = {
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.folder),
        }
        environment |= {
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"
        }  # its queues are seven processes
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment, start_new_session=True
            )
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                # Another server that took the port has no such route.
                if httpx.get(f"{self.url}/version", timeout=5).status_code == 200:
                    return
            except httpx.HTTPError:
                time.sleep(0.2)
        raise AssertionError(log.read_text(errors="replace")[-2000:])

    def kill(self) -> None:
        """Kill it and its workers outright."""
        if self.process is not None:
            os.killpg(self.process.pid, 9)
            self.process.wait()
            self.process = None


STARTS = 5
"""Servers of a module, with those that found their port taken, after which a failure is raised."""


@pytest.fixture(scope="session")
def mlflow_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter that HARNESS_MLFLOW_PYTHON names, or one that uv makes."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    folder = tmp_path_factory.mktemp("mlflow") / "venv"
    uv = find_uv() or pytest.skip("uv is not here, which makes the environment of MLflow's server")
    for words in (
        ["venv", "--python", sys.executable, str(folder)],
        ["pip", "install", "--python", str(folder), MLFLOW],
    ):
        done = subprocess.run([uv, *words], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(
                f"the environment of MLflow's server cannot be made: {done.stderr.strip()[-300:]}"
            )
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def start_mlflow(
    mlflow_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Mlflow]]:
    """Starts a server, which ends with the module."""
    started: list[Mlflow] = []

    def start() -> Mlflow:
        while True:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            server = Mlflow(mlflow_python, tmp_path_factory.mktemp("server"), port)
            started.append(server)
            try:
                server.start()
                return server
            except AssertionError:
                # Another process may take the free port first; MLflow then ends.
                if len(started) >= STARTS:
                    raise

    yield start
    for one in started:
        one.kill()
