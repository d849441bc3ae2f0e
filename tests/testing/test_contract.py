"""The contract suite catches what it is there to catch."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest

from harness.cli.scaffold import KINDS, write_package
from harness.contracts.toolbox import Toolbox
from harness.gateway.server import GatewayServer
from harness.records import Problem
from harness.testing.cancelling import faults_of_cancellations
from harness.testing.contract import AgentContract
from harness_sql.self_correcting.prompts import Prompt
from harness_sql.self_correcting.reference import ReferenceSQL


class TestReference(AgentContract):
    agent = "reference_sql"


def test_the_contract_cannot_be_overridden() -> None:
    with pytest.raises(TypeError, match="overrides test_respects_max_turns"):
        type("Mine", (AgentContract,), {"test_respects_max_turns": lambda self: None})


class Environment(ReferenceSQL):
    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        os.environ["HARNESS_TEST_LEFTOVER"] = "1"
        return await super().solve(problem, toolbox)


class Telemetry(ReferenceSQL):
    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        with socket.socket() as other:
            other.settimeout(0.1)
            other.connect_ex(("127.0.0.1", 9))
        return await super().solve(problem, toolbox)


class LateTelemetry(ReferenceSQL):
    """Hands what it tells of a rollout to a thread, which gathers before it sends, as PostHog's client does."""

    def __init__(self) -> None:
        self.events: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self.send, daemon=True).start()

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        answer = await super().solve(problem, toolbox)
        self.events.put(problem.question)
        return answer

    def send(self) -> None:
        self.events.get()
        with contextlib.suppress(queue.Empty):
            self.events.get(timeout=0.5)
        with contextlib.suppress(OSError):
            socket.create_connection(("telemetry.invalid", 443), timeout=0.1)


class Warmer(ReferenceSQL):
    async def ask(self, toolbox: Toolbox, prompt: Prompt) -> str:
        from dataclasses import replace

        class Changed:
            http_client = toolbox.http_client

            def llm(self, role: str) -> Any:
                llm = toolbox.llm(role)
                return replace(llm, sampling={**llm.sampling, "temperature": 1.3})

        return await super().ask(Changed(), prompt)  # type: ignore[arg-type]


class Swallows(ReferenceSQL):
    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        try:
            return await super().solve(problem, toolbox)
        except Exception:
            return "SELECT 1"


class GoesOn(ReferenceSQL):
    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        try:
            return await super().solve(problem, toolbox)
        except asyncio.CancelledError:
            return "SELECT 1"


class Raises(ReferenceSQL):
    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        raise RuntimeError("not ready")


class Lingers(ReferenceSQL):
    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        self.left = asyncio.create_task(asyncio.sleep(60))
        return await super().solve(problem, toolbox)


class Mixes(ReferenceSQL):
    """Keeps one rollout's problem on the instance."""

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        self.problem = problem
        await asyncio.sleep(0.01)
        return await super().solve(self.problem, toolbox)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "test", "arguments"),
    [
        (Environment, "test_solves_the_scripted_episode", {}),
        (Telemetry, "test_solves_the_scripted_episode", {}),
        (LateTelemetry, "test_solves_the_scripted_episode", {}),
        (Warmer, "test_solves_the_scripted_episode", {}),
        (Lingers, "test_cancellation_ends_promptly_and_leaves_nothing_running", {}),
        (Mixes, "test_concurrent_rollouts_stay_apart", {}),
    ],
)
def test_a_broken_agent_is_caught(
    agent: type[ReferenceSQL],
    test: str,
    arguments: dict[str, str],
    gateway: GatewayServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HARNESS_TEST_LEFTOVER", "0")
    suite = TestReference()
    folder = tmp_path / agent.__name__
    folder.mkdir()
    fresh = GatewayServer()  # attempts have fixed names: each case needs a gateway of its own
    with fresh, pytest.raises(AssertionError):
        getattr(suite, test)(agent(), fresh, folder, **arguments)


def test_a_swallowed_server_error_is_still_seen(gateway: GatewayServer, tmp_path: Path) -> None:
    TestReference().test_an_error_of_the_server_surfaces(
        Swallows(), gateway, tmp_path, "server_error"
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_scaffolded_plugin_passes_the_contract_as_it_stands(tmp_path: Path, kind: str) -> None:
    name = f"scaffolded_{kind}"
    package = write_package(name, tmp_path, kind)
    metadata = tmp_path / "site" / f"harness_{name}-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n"
    )
    (metadata / "entry_points.txt").write_text(
        f"[harness]\n{name} = {project['entry-points']['harness'][name]}\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{metadata.parent}{os.pathsep}{package / 'src'}"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(package)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=package
    )
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.parametrize(
    ("agent", "fault"),
    [(Lingers, "left running"), (Raises, "not ready"), (GoesOn, "swallowed its cancellation")],
)
def test_a_sweep_of_cancellations_finds_broken_agents(
    agent: type[ReferenceSQL], fault: str, tmp_path: Path
) -> None:
    scenario = TestReference().scenario("wrong_then_fixed")
    faults = faults_of_cancellations(agent(), "self_correcting_sql", scenario, tmp_path)
    assert any(fault in found for found in faults), faults
