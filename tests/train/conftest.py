"""What trainings and installations need."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from harness.config import load_config
from harness_verl.standby import ForkServer
from harness_verl.trainer import VerlTrainer

REPO = Path(__file__).parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that may take longest come first: else one is left over while the other process has nothing to do."""

    def limit_s(item: pytest.Item) -> float:
        marker = item.get_closest_marker("timeout")
        return marker.args[0] if marker else 0.0

    items.sort(key=limit_s, reverse=True)


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    """The server of forks that trainings of a study share."""
    standby = VerlTrainer().standby(load_config("cpu", agent="reference_sql"))
    assert isinstance(standby, ForkServer)
    yield standby
    standby.close()
    assert not standby.fresh()


@pytest.fixture
def shared(server: ForkServer) -> Mapping[str, str]:
    """What a training that uses it is told: all of them but those that test their own."""
    return server.variables


@pytest.fixture(scope="session")
def uv() -> str:
    """The program that builds and installs wheels."""
    found = shutil.which("uv") or str(REPO / ".uv" / "bin" / "uv")
    if not Path(found).exists():
        pytest.skip("needs uv, which `make` puts into .uv")
    return found
