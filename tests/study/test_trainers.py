"""Arms of a study with different trainers."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness_study.plan import jobs_of, read_study

STUDY = """
baseline: grpo
preset: cpu
set: {agent: reference_sql, device: cpu, train.steps: 2, train.mini_batch_size: 4}
arms:
  grpo: {train.trainer: verl}
  demonstrations: {train.trainer: demonstrations, train.shots: 1}
matrix: {seed: [0]}
"""


def study(folder: Path, text: str) -> Path:
    file = folder / "trainers.yaml"
    file.write_text(text)
    return file


def test_options_of_all_runs_that_a_trainer_lacks_are_left_out(tmp_path: Path) -> None:
    jobs = jobs_of(read_study(study(tmp_path, STUDY)))
    sections = {job.arm: job.config.train.model_dump() for job in jobs}
    assert sections["grpo"]["mini_batch_size"] == 4 and "shots" not in sections["grpo"]
    assert "mini_batch_size" not in sections["demonstrations"]
    assert sections["demonstrations"]["shots"] == 1
    assert sections["demonstrations"]["steps"] == sections["grpo"]["steps"] == 2


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("train.shots: 1", "train.lora_rank: 8"),  # of the arm itself
        ("train.mini_batch_size: 4", "train.mini_batch: 4"),  # known to no trainer
    ],
)
def test_others_are_refused(tmp_path: Path, before: str, after: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown configuration key '{after.split(':')[0]}'"):
        jobs_of(read_study(study(tmp_path, STUDY.replace(before, after))))
