"""A trainer that trains nothing, brought by a plugin as any other, so that whole studies run in seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.plugins import registry

ROOT = Path(__file__).parents[2]

TRAINER = """
import shutil, sys, time
from pathlib import Path
sys.path.insert(0, {here!r})
from harness.contracts.hookspecs import AgentSpec, TrainerSpec, hookimpl
from harness_sql.self_correcting.reference import ReferenceSQL
from harness.contracts.trainers import Trainer
HARNESS_API = 1

@hookimpl
def harness_trainers():
    return [TrainerSpec("synthetic", "synthetic_trainer:Synthetic", "Writes a run without training.")]

@hookimpl
def harness_agents():
    roles, SQL = ("write_query", "check_query", "rewrite_query"), "self_correcting_sql"
    return [
        AgentSpec("same_sql", "synthetic_trainer:Same", "Does what the reference does.", roles=roles, program=SQL),
        AgentSpec("skips_sql", "synthetic_trainer:Skips", "Does not.", roles=roles, program=SQL),
    ]

class Same(ReferenceSQL):
    pass

class Skips(ReferenceSQL):
    async def solve(self, problem, toolbox):
        sql = toolbox.prompts.parse_sql(await self.ask(toolbox, toolbox.prompts.write(problem)))
        await toolbox.execute(sql + " ")
        return sql

class Synthetic(Trainer):
    def check_machine(self, config):
        if config.verl.get("not_installed"):
            from harness.errors import EnvironmentProblem
            raise EnvironmentProblem("synthetic is not installed: install it")

    def checkpoints(self, folder):
        return {{int(path.read_text()): path for path in folder.checkpoints.glob("newest.txt")}}

    def fit(self, run):
        from synthetic import Writer
        from harness.errors import RunFailed
        config, folder = run.config, run.folder
        writer, size = Writer(folder, config, True, False), config.train.batch_size
        folder.checkpoints.mkdir(exist_ok=True)
        first_launch = not run.done and run.validate_first
        for step in range(run.done + (not run.validate_first), run.steps + 1):
            for task in run.train[(step - 1) * size : step * size] if step else ():
                writer.episode(task, "train", step, 0, 0.5, 2)
            if step:
                writer.step(step, 0.1)
            if step in (0, run.steps):
                for task in run.val:
                    writer.episode(task, "val", step, 0, 0.3 + 0.3 * (step > 0), 2)
            (folder.checkpoints / "newest.txt").write_text(str(step))
            run.poll()
            while (gate := config.verl.get("gate")) and not Path(gate).exists():
                run.poll()
                time.sleep(0.05)
            if config.verl.get("ray_was_slow") and first_launch:
                raise RunFailed("verl ended: The current node timed out during startup.")
            if config.verl.get("removed_seed") == config.seed and step == 1:
                shutil.rmtree(folder.path)
            if config.verl.get("fail_seed") == config.seed and step == 1 and first_launch:
                raise RunFailed("the GPU fell off the bus")
            time.sleep(config.verl.get("sleep_s", 0))
"""

STUDY = """
name: small
question: Does a study work?
baseline: two turns
margin: 0.2
preset: cpu
set: {train.trainer: synthetic, train.steps: 3, train.batch_size: 4, rollout.group_size: 1, task.val_limit: 20,
      verl.sleep_s: 0.0}
matrix:
  max_turns: {two turns: 2, one turn: 1}
  seed: [0, 1]
"""


@pytest.fixture(scope="session")
def synthetic_plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with an installed plugin that offers trainer `synthetic`."""
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "synthetic_trainer.py").write_text(
        TRAINER.format(here=str(ROOT / "tests" / "compare"))
    )
    info = folder / "synthetic_trainer-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: synthetic-trainer\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[harness]\nsynthetic = synthetic_trainer\n")
    return folder


@pytest.fixture
def start(synthetic_plugin: Path, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts `harness` with arguments in `tmp_path`."""

    def started(*arguments: str) -> subprocess.Popen[str]:
        path = os.pathsep.join(
            [str(synthetic_plugin), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "160"}
        environment.pop("HARNESS_WITHOUT_PARITY", None)  # certificates of studies are tested here
        command = [sys.executable, "-m", "harness", *arguments]
        return subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return started


@pytest.fixture
def harness(
    start: Callable[..., subprocess.Popen[str]],
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `harness` to its end."""

    def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
        process = start(*arguments)
        # A bound against waiting for ever: how long a loaded machine takes is not tested.
        out, err = process.communicate(timeout=300)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    return ran


@pytest.fixture
def here(
    synthetic_plugin: Path,
    tmp_path: Path,
    command: Callable[..., subprocess.CompletedProcess[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs `harness` to its end in this process, for what starts no run."""
    monkeypatch.syspath_prepend(str(synthetic_plugin))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    registry.cache_clear()
    yield command
    registry.cache_clear()
    sys.modules.pop("synthetic_trainer", None)


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(STUDY)
    return path
