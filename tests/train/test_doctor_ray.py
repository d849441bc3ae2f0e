"""`harness doctor --ray` on a cluster of two nodes that Ray's own command starts."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.train
RAY = str(Path(sys.executable).with_name("ray"))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    common = [
        "--num-cpus",
        "3",
        "--object-store-memory",
        "100000000",
        "--include-dashboard",
        "false",
        "--block",
    ]
    environment = {
        **os.environ,
        "RAY_TMPDIR": str(tmp_path)[:40],
        "RAY_DISABLE_MEMORY_MONITOR": "1",
    }
    head = [RAY, "start", "--head", "--port", str(port), *common]
    with subprocess.Popen(
        head, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    ) as process:
        yield address
        process.terminate()


def _doctor(address: str) -> tuple[int, list[dict[str, str]]]:
    command = [sys.executable, "-m", "harness", "doctor", "--ray", address, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    return done.returncode, json.loads(done.stdout)


def test_a_cluster_says_what_it_has_and_what_its_nodes_can(cluster: str) -> None:
    status, found = 1, []
    for _ in range(6):  # until it has started
        status, found = _doctor(cluster)
        if status == 0:
            break
    assert status == 0, found
    whole, node = found
    assert whole["check"] == "ray cluster" and whole["found"].startswith("1 nodes, 3 CPUs")
    assert (
        node["check"].startswith("ray node ")
        and node["state"] == "ok"
        and node["found"].startswith("3 CPUs")
    )


def test_nobody_at_the_address_is_one_line() -> None:
    status, (line,) = _doctor("127.0.0.1:1")
    assert status == 1 and line["state"] == "problem" and "ray start --head" in line["advice"]
