"""The disk space of a study's checkpoints, in its plan."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.policies import resolve
from harness_study.checkpoint_space import checkpoint_space
from harness_study.display import Plan, is_short, space_text
from harness_study.plan import Job, jobs_of, read_study
from harness_study.state import Step
from harness_verl.limits import checkpoint_bytes

STUDY = """
preset: cpu
set: {agent: reference_sql, device: cpu, train.steps: 2, train.save_every: 2}
matrix: {seed: [0, 1, 2], max_turns: [1, 2]}
"""


def jobs(folder: Path, *overrides: str) -> list[Job]:
    file = folder / "small.yaml"
    file.write_text(STUDY)
    return jobs_of(read_study(file), overrides)


def of_one(job: Job) -> int:
    size = checkpoint_bytes(job.config, resolve(job.config.policy.path), 2)
    assert size > 1_000_000
    return size


def test_every_training_that_is_left_counts(tmp_path: Path) -> None:
    planned = jobs(tmp_path)
    steps = [Step(job, "run") for job in planned]
    size = of_one(planned[0])
    needed, free = checkpoint_space(steps, 1, tmp_path / "not" / "there") or (0, 0)
    assert needed == 6 * size
    assert abs(free - shutil.disk_usage(tmp_path).free) < 1_000_000_000
    steps[:2] = [Step(job, "skip") for job in planned[:2]]
    assert (checkpoint_space(steps, 1, tmp_path) or (0, 0))[0] == 4 * size


def test_without_kept_checkpoints_those_of_running_trainings_count(tmp_path: Path) -> None:
    planned = jobs(tmp_path, "train.keep_checkpoints=0")
    steps = [Step(job, "run") for job in planned]
    size = of_one(planned[0])
    for at_once in (1, 4):
        assert (checkpoint_space(steps, at_once, tmp_path) or (0, 0))[0] == at_once * size


def test_a_policy_of_unknown_size_gives_no_figure(tmp_path: Path) -> None:
    steps = [Step(job, "run") for job in jobs(tmp_path, "policy.path=nobody/has-this")]
    assert checkpoint_space(steps, 1, tmp_path) is None


@pytest.mark.parametrize(("needed", "short"), [(1_000_000_000, False), (3_000_000_000, True)])
def test_a_full_disk_is_announced_with_what_to_do(needed: int, short: bool) -> None:
    plan = Plan(
        study="small",
        jobs=[],
        to_run=0,
        estimate_s=None,
        runs_at_once=1,
        cores_per_run=1,
        gpus=None,
        without_estimate=0,
        differences={},
        checkpoint_bytes=needed,
        free_bytes=2_000_000_000,
    )
    assert is_short(plan) is short
    text = space_text(plan)
    assert text.startswith(
        f"Checkpoints: at least {needed / 1e9:.1f} GB. Free on the disk: 2.0 GB."
    )
    assert ("--set train.keep_checkpoints=0" in text) is short


def test_evaluations_need_a_kept_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(f"{STUDY}evaluate: [reference_sql]\n")
    study = read_study(file)
    assert jobs_of(study)
    with pytest.raises(ConfigError, match=r"`evaluate` needs .* Use train\.keep_checkpoints=1"):
        jobs_of(study, ["train.keep_checkpoints=0"])
