"""What trainings and installations need."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from harness.config import load_config
from harness.trainers.verl.trainer import VerlTrainer

REPO = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def shared() -> Iterator[Mapping[str, str]]:
    """The server of forks that trainings of a study share, for all trainings but those that test their own."""
    standby = VerlTrainer().standby(load_config("cpu", agent="reference_sql"))
    assert standby is not None
    yield standby.variables
    standby.close()


@pytest.fixture(scope="session")
def uv() -> str:
    """The program that builds and installs wheels."""
    found = shutil.which("uv") or str(REPO / ".uv" / "bin" / "uv")
    if not Path(found).exists():
        pytest.skip("needs uv, which `make` puts into .uv")
    return found
