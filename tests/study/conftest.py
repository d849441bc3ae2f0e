"""A trainer that trains nothing, brought by a plugin as any other, so that whole studies run in seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TRAINER = """
import sys, time
sys.path.insert(0, {here!r})
from harness.hookspecs import TrainerSpec, hookimpl
HARNESS_API = 1

@hookimpl
def harness_trainers():
    return [TrainerSpec("synthetic", "synthetic_trainer:Trainer", "Writes a run without training.")]

class Trainer:
    def fit(self, job):
        from synthetic import Writer, pocket
        from harness.errors import RunFailed
        from harness.results.record import finished, run_record
        from harness.trainers import Progress
        from harness.trainers.order import training_order, validation_order
        config, folder = job.config, job.folder
        train = training_order(pocket().load("train"), config)
        val = validation_order(pocket().load("val"), config)
        done = 0
        if job.resume:
            checkpoint = folder.latest_checkpoint()
            done = checkpoint[0] if checkpoint else -1
            folder.drop_after(done)
        folder.write(run_record(config, folder, pocket(), train, val, "m", "cpu", resumed=job.resume))
        writer, size = Writer(folder, config, True), config.train.batch_size
        folder.checkpoints.mkdir(exist_ok=True)
        began, status, reason = time.time(), "failed", ""
        try:
            for step in range(max(done, -1) + 1, config.train.steps + 1):
                for task in train[(step - 1) * size : step * size] if step else ():
                    writer.episode(task, "train", step, 0, 0.5, 2)
                if step:
                    writer.step(step, 0.1)
                if step in (0, config.train.steps):
                    for task in val:
                        writer.episode(task, "val", step, 0, 0.3 + 0.3 * (step > 0), 2)
                (folder.checkpoints / "latest_checkpointed_iteration.txt").write_text(str(step))
                job.on_progress(Progress(step=step, total_steps=config.train.steps))
                if config.verl.get("ray_was_slow") and not job.resume:
                    reason = "verl ended: The current node timed out during startup."
                    raise RunFailed(reason)
                if config.verl.get("fail_seed") == config.seed and step == 1 and not job.resume:
                    reason = "the GPU fell off the bus"
                    raise RunFailed(reason)
                time.sleep(config.verl.get("sleep_s", 0))
            status = "finished"
        except KeyboardInterrupt:
            status, reason = "interrupted", "interrupted by the user"
            raise
        finally:
            folder.compact()
            folder.write(finished(folder, status, reason, time.time() - began))
"""

STUDY = """
name: small
question: Does a study work?
baseline: reference_sql
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
    (folder / "synthetic_trainer.py").write_text(TRAINER.format(here=str(ROOT / "tests" / "compare")))
    info = folder / "synthetic_trainer-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: synthetic-trainer\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[harness]\nsynthetic = synthetic_trainer\n")
    return folder


@pytest.fixture
def start(synthetic_plugin: Path, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts `harness` with arguments in `tmp_path`."""

    def started(*arguments: str) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(synthetic_plugin), str(ROOT)])
        environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "160"}
        command = [sys.executable, "-m", "harness", *arguments]
        return subprocess.Popen(
            command, cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    return started


@pytest.fixture
def harness(start: Callable[..., subprocess.Popen[str]]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `harness` to its end."""

    def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
        process = start(*arguments)
        out, err = process.communicate(timeout=90)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    return ran


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(STUDY)
    return path
