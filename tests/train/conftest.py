"""What trainings and installations need."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from harness.config import load_config
from harness_verl.standby import ForkServer
from harness_verl.trainer import VerlTrainer

REPO = Path(__file__).parents[2]
SMALL = [
    *("--set", "train.batch_size=4", "--set", "task.val_limit=8", "--set", "train.val_every=0"),
    *("--set", "train.save_every=1"),
]
TWO_STEPS = ("--steps", "2", *SMALL, "--set", "train.val_every=1")
"""Of a training that others are compared with."""


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    """The server of forks that trainings of a study share."""
    standby = VerlTrainer().standby(load_config("cpu", agent="reference_sql"), os.environ)
    assert isinstance(standby, ForkServer)
    yield standby
    standby.close()
    assert not standby.fresh()


@pytest.fixture
def shared(server: ForkServer) -> Mapping[str, str]:
    """What a training that uses it is told: all of them but those that test their own."""
    return server.variables


@pytest.fixture(scope="session")
def left_alone(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Gives the run of `TWO_STEPS` by the reference that nothing disturbs: twice the runners and agent-loop workers.

    Made when first asked for, once for all processes that test. It is read only.
    """

    def run() -> Path:
        root = tmp_path_factory.getbasetemp()
        root = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "left-alone"
        root.mkdir(exist_ok=True)
        with (root / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (root / "made").exists():
                workers = (
                    "rollout.runners=2",
                    "verl.actor_rollout_ref.rollout.agent.num_workers=2",
                )
                settings = [word for one in workers for word in ("--set", one)]
                command = [
                    sys.executable,
                    "-m",
                    "harness",
                    "train",
                    "--agent",
                    "reference_sql",
                    *TWO_STEPS,
                    *settings,
                ]
                command += ["--runs-dir", str(root / "runs")]
                variables = {**os.environ, **server.variables}
                done = subprocess.run(
                    command, capture_output=True, text=True, env=variables, timeout=600
                )
                assert done.returncode == 0, done.stderr[-3000:]
                (made,) = (root / "runs").iterdir()
                (root / "made").write_text(str(made))
            return Path((root / "made").read_text())

    return run


@pytest.fixture(scope="session")
def uv() -> str:
    """The program that builds and installs wheels."""
    found = shutil.which("uv") or str(REPO / ".uv" / "bin" / "uv")
    if not Path(found).exists():
        pytest.skip("needs uv, which `make` puts into .uv")
    return found
