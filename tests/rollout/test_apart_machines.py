"""Store, trainer and runner on machines of their own: network namespaces, with one switch between them."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.runs.folder import RunFolder
from sides import TASKS, Sides, wait_for

MACHINES = {"store": "10.77.0.1", "eval": "10.77.0.2", "runner": "10.77.0.3"}
"""Addresses, which nothing outside the namespaces has, by the command that runs there; `train` has that of `eval`."""
ONE_STEP = (
    *(
        "train",
        "--agent",
        "reference_sql",
        "--preset",
        "cpu",
        "--steps",
        "1",
        "--set",
        "train.batch_size=4",
    ),
    *("--set", "task.val_limit=8", "--set", "train.val_every=0"),
)


def ip(*words: str) -> bool:
    return subprocess.run(["ip", *words], capture_output=True).returncode == 0


def lacking() -> str:
    """What is not there to make namespaces with."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "needs root and `ip` (Debian: iproute2)"
    tried = f"harness-{secrets.token_hex(4)}"
    made = ip("netns", "add", tried) and ip("-n", tried, "link", "add", "br0", "type", "bridge")
    ip("netns", "del", tried)
    return "" if made else "`ip netns add` or a bridge in it is not allowed here"


pytestmark = [pytest.mark.netns, pytest.mark.timeout(580)]


class Machines(Sides):
    """Each side in its namespace, with a cache, a working folder and a copy of the key of its own."""

    def __init__(self, folder: Path, tag: str) -> None:
        super().__init__(folder, "")
        self.tag = tag
        self.url = f"http://{MACHINES['store']}:4747"

    def machine(self, name: str) -> str:
        """Its namespace."""
        return f"harness-{self.tag}-{name}"

    def build(self) -> None:
        """Make the namespaces, and cables from a switch to each."""
        switch = self.machine("switch")
        commands = [["netns", "add", self.machine(name)] for name in ("switch", *MACHINES)]
        commands += [
            ["-n", switch, "link", "add", "br0", "type", "bridge"],
            ["-n", switch, "link", "set", "br0", "up"],
        ]
        for name, address in MACHINES.items():
            own = ["-n", self.machine(name)]
            commands += [
                [
                    *own,
                    "link",
                    "add",
                    "eth0",
                    "type",
                    "veth",
                    "peer",
                    "name",
                    name,
                    "netns",
                    switch,
                ],
                [*own, "address", "add", f"{address}/24", "dev", "eth0"],
                [*own, "link", "set", "eth0", "up"],
                [*own, "link", "set", "lo", "up"],
                ["-n", switch, "link", "set", name, "master", "br0", "up"],
            ]
        for command in commands:
            subprocess.run(["ip", *command], check=True, capture_output=True)

    def remove(self) -> None:
        """End all processes, and take the namespaces away."""
        try:
            self.end()
        finally:
            for name in ("switch", *MACHINES):
                ip("netns", "del", self.machine(name))

    def start(self, *arguments: str | Path, log: str) -> subprocess.Popen[str]:
        name = "eval" if arguments[0] == "train" else str(arguments[0])
        return self.on(name, [sys.executable, "-m", "harness", *map(str, arguments)], log)

    def on(self, name: str, command: list[str], log: str) -> subprocess.Popen[str]:
        """A process on a machine, with its output in a file."""
        home = self.folder / f"machine-{name}"
        home.mkdir(exist_ok=True)
        if name != "store" and not (home / "cache").exists():
            (home / "cache").mkdir()
            shutil.copy2(self.folder / "machine-store" / "cache" / "store.key", home / "cache")
        variables = os.environ | {
            "HARNESS_CACHE_DIR": str(home / "cache"),
            "HARNESS_TEST_SIDES": str(self.folder),
        }
        there = ["ip", "netns", "exec", self.machine(name), *command]
        with (
            (self.folder / log).open("ab") as output,
            (self.folder / f"{log}.err").open("ab") as errors,
        ):
            process = subprocess.Popen(
                there, stdout=output, stderr=errors, text=True, env=variables, cwd=home
            )
        self._all.append(process)
        return process

    def store(self) -> subprocess.Popen[str]:
        return self.start("store", "--host", MACHINES["store"], log="store.log")

    def policy(self) -> None:
        """A scripted one, which only the machine of the evaluation reaches."""
        served = [
            sys.executable,
            "-m",
            "harness.mock_model.server",
            "--script",
            "sides:seeded",
            "--plain",
            "--forget",
        ]
        path = f"PYTHONPATH={Path(__file__).parents[1] / 'shared'}"  # where `sides` is
        self.on("eval", ["env", path, *served], "policy")
        line = wait_for(lambda: (self.folder / "policy").read_text())
        self.endpoint = f"http://127.0.0.1:{json.loads(line)['port']}/v1"


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    if lacks := lacking():
        pytest.skip(lacks)
    with ExitStack() as after:
        made = Machines(tmp_path, secrets.token_hex(3))
        after.callback(made.remove)
        made.build()
        yield made
    assert not made.left()
    names = subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, check=True
    ).stdout
    assert made.tag not in names


@pytest.mark.slow
def test_on_machines_of_their_own_rewards_are_those_of_one_machine(
    machines: Machines, undisturbed: dict[tuple[str, int], tuple[Any, ...]]
) -> None:
    store = machines.store()
    wait_for(lambda: "store:" in machines.output("store.log"))
    machines.policy()
    runner = machines.runner()
    apart = ("--set", f"rollout.host={MACHINES['eval']}", "--set", "trusted_network=true")
    evaluation = machines.evaluation(*apart)
    all_of_us = (store, runner, evaluation, psutil.Process())
    wait_for(lambda: len({os.readlink(f"/proc/{one.pid}/ns/net") for one in all_of_us}) == 4)
    assert evaluation.wait(400) == 0, machines.output("eval") + machines.output("runner")
    assert machines.rows() == undisturbed
    assert machines.record()["result"]["outcomes"] == {"ok": TASKS}
    key = (machines.folder / "machine-store" / "cache" / "store.key").read_text().strip()
    assert key not in "".join(map(machines.output, ("eval", "runner", "store.log")))


@pytest.mark.train
@pytest.mark.timeout(900)
def test_a_training_on_machines_of_their_own_is_that_of_one_machine(machines: Machines) -> None:
    store = machines.store()
    wait_for(lambda: "store:" in machines.output("store.log"))
    runner = machines.runner()
    apart = (
        "--store",
        machines.url,
        "--set",
        "rollout.runners=0",
        "--set",
        f"rollout.host={MACHINES['eval']}",
        "--set",
        "trusted_network=true",
    )
    trainer = machines.start(
        *ONE_STEP, *apart, "--runs-dir", machines.folder / "apart", log="train"
    )
    wait_for(
        lambda: (
            len({os.readlink(f"/proc/{one.pid}/ns/net") for one in (store, runner, trainer)}) == 3
        )
    )
    assert trainer.wait(500) == 0, machines.output("train") + machines.output("runner")
    alone = Sides(machines.folder, "")
    try:
        near = alone.start(*ONE_STEP, "--runs-dir", machines.folder / "alone", log="near")
        assert near.wait(300) == 0, machines.output("near")
    finally:
        near.kill()
    rows = {name: trained(next((machines.folder / name).iterdir())) for name in ("apart", "alone")}
    assert rows["apart"] == rows["alone"] and {step for step, *_ in rows["apart"]} == {0, 1}


def trained(run: Path) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """What counts of each rollout of a training."""
    return {
        (row["step"], row["phase"], row["task_id"], row["session"]): (
            row["outcome"],
            row["reward"],
            row["answer"],
        )
        for row in RunFolder.open(run).rows("episodes")
    }
