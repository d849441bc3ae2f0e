"""Fixtures of the whole suite."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from harness.cli import main
from harness.cli.common import progress_console, results
from harness.gateway.client import GatewayControl
from harness.gateway.server import GatewayServer
from harness.runs.folder import endings

pytest_plugins = ["harness.testing.fixtures"]
# Each certificate takes seconds, and many agents of tests are no strict agents on purpose.
os.environ.setdefault("HARNESS_WITHOUT_PARITY", "1")


@pytest.hookimpl(tryfirst=True)  # before those of other markers are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that may take longest come first, by their tests' marker `timeout`: else one is left over while the other
    processes have nothing to do. What all scenarios of an agent are played for is slow, what builds the site, and what
    has a teacher play for training data."""
    limits: dict[Path, float] = {}
    for item in items:
        if {"recordings", "mkdocs", "played"} & {*getattr(item, "fixturenames", ())}:
            item.add_marker(pytest.mark.slow)
        marker = item.get_closest_marker("timeout")
        limits[item.path] = max(limits.get(item.path, 0.0), marker.args[0] if marker else 0.0)
    items.sort(key=lambda item: limits[item.path], reverse=True)


@pytest.fixture(autouse=True)
def _signals_are_given_back() -> Iterator[None]:
    """A command that runs in this process takes signals; processes that a later test forks would have its handlers."""
    before = {number: signal.getsignal(number) for number in endings()}
    yield
    for number, handler in before.items():
        if handler is not None:  # None: not from Python
            signal.signal(number, handler)


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayServer]:
    """A real gateway process for the module's tests."""
    with GatewayServer() as server:
        yield server


@pytest_asyncio.fixture
async def control(gateway: GatewayServer) -> AsyncIterator[GatewayControl]:
    async with gateway.control() as client:
        yield client


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `harness` with arguments in this process, with some variables set; what its children say is told too."""

    def run(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        with monkeypatch.context() as patched:
            for name, value in variables.items():
                patched.setenv(name, value)
            patched.setattr(sys, "argv", ["harness", *map(str, arguments)])
            for console in (
                results,
                progress_console,
            ):  # made once a process, for its terminal and variables
                console.cache_clear()
            with pytest.raises(SystemExit) as left:
                main()
        output = capfd.readouterr()
        return subprocess.CompletedProcess(
            arguments, int(str(left.value.code or 0)), output.out, output.err
        )

    return run


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes file systems of a size such as `2m`; skips where that is not allowed."""
    made: list[Path] = []

    def make(size: str) -> Path:
        disk = tmp_path / f"disk-{len(made)}"
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
        if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("needs the right to mount a tmpfs")
        made.append(disk)
        return disk

    yield make
    for disk in made:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture
def fill() -> Callable[..., Path]:
    """Takes all room of a disk but `leave` bytes; gives the file that takes it."""

    def fill(disk: Path, leave: int = 0) -> Path:
        filler = disk / "filler"
        with filler.open("ab", buffering=0) as file:
            while (free := shutil.disk_usage(disk).free - leave) > 0:
                file.write(b"x" * min(free, 2**24))
        return filler

    return fill
