"""The disk space of a study's checkpoints, in its plan."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.errors import ConfigError, UserError
from harness.policies import resolve
from harness_study.checkpoint_space import checkpoint_advice, checkpoint_space
from harness_study.display import Plan, is_short, space_text
from harness_study.execute import StudyRun
from harness_study.launch_plan import refuse_lost_policies, refuse_missing_policies
from harness_study.plan import Job, jobs_of, read_study
from harness_study.state import Step, StudyFolder
from harness_verl.limits import all_checkpoint_bytes, checkpoint_bytes

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
    """Return the size of a checkpoint of the bundled policy.

    It has 3.3 million parameters of 4 bytes, and AdamW keeps two more numbers for each.
    """
    size = checkpoint_bytes(job.config, resolve(job.config.policy.path))
    assert size == pytest.approx(12 * 3.29e6, rel=0.02)
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


def test_a_training_that_saves_often_needs_room_for_one_more(tmp_path: Path) -> None:
    """The oldest checkpoint is removed after the newest is written."""
    planned = jobs(tmp_path, "train.save_every=1", "train.steps=3", "train.keep_checkpoints=1")
    size = of_one(planned[0])
    needed = checkpoint_space([Step(job, "run") for job in planned], 2, tmp_path) or (0, 0)
    assert needed[0] == (6 + 2) * size


@pytest.mark.parametrize(
    ("settings", "at_once"),
    [
        (["train.steps=2"], 1),
        (["train.steps=3"], 2),
        (["train.steps=8"], 2),
        (["train.steps=8", "train.keep_checkpoints=3"], 3),
        (["train.steps=8", "train.keep_checkpoints=1"], 2),
        (["train.steps=8", "train.keep_checkpoints=0"], 2),
        (["train.steps=8", "train.save_every=0"], 1),
        (["train.steps=8", "verl.actor_rollout_ref.actor.checkpoint.async_save=true"], 2),
    ],
)
def test_a_plan_and_a_start_ask_for_the_same_room(
    tmp_path: Path, settings: list[str], at_once: int
) -> None:
    job = jobs(tmp_path, *settings)[0]
    needed, _ = checkpoint_space([Step(job, "run")], 1, tmp_path) or (0, 0)
    policy, steps = resolve(job.config.policy.path), job.config.train.steps
    assert steps is not None
    assert needed == all_checkpoint_bytes(job.config, policy, steps) == at_once * of_one(job)


@pytest.mark.parametrize(
    ("contents", "copies"),
    [
        ("[model, optimizer, extra]", 3),
        ("null", 3),
        ("[model]", 1),
        ("[optimizer]", 2),
        ("[hf_model]", 1),
        ("[model, hf_model, optimizer]", 4),
        ("[extra]", 0),
    ],
)
def test_what_a_checkpoint_leaves_out_needs_no_room(
    tmp_path: Path, contents: str, copies: int
) -> None:
    (whole, *_) = jobs(tmp_path)
    (job, *_) = jobs(tmp_path, f"verl.actor_rollout_ref.actor.checkpoint.save_contents={contents}")
    size = checkpoint_bytes(job.config, resolve(job.config.policy.path))
    assert size * 3 == of_one(whole) * copies


def test_checkpoints_on_the_disk_count_once(tmp_path: Path) -> None:
    planned = jobs(tmp_path)
    size = of_one(planned[0])
    folder = tmp_path / "run"
    (folder / "checkpoints" / "global_step_2").mkdir(parents=True)
    (folder / "checkpoints" / "global_step_2" / "model.pt").write_bytes(bytes(size // 2))
    steps = [Step(planned[0], "resume", folder), Step(planned[1], "run")]
    assert (checkpoint_space(steps, 1, tmp_path) or (0, 0))[0] == 2 * size - size // 2


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
        checkpoint_advice="--set train.keep_checkpoints=0",
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
    refuse_lost_policies(jobs_of(study))
    planned = jobs_of(study, ["train.keep_checkpoints=0"])
    with pytest.raises(ConfigError, match=r"^evaluate: .* Use train\.keep_checkpoints=1"):
        refuse_lost_policies(planned)
    # Settings that save space are those that the study allows.
    assert checkpoint_advice([Step(job, "run") for job in planned]) == ""
    kept = [Step(job, "run") for job in jobs_of(study)]
    assert checkpoint_advice(kept) == "--set train.keep_checkpoints=1"
    alone = [step for step in kept if step.job.kind == "train"]
    assert checkpoint_advice(alone) == "--set train.keep_checkpoints=0"


def test_a_finished_training_without_a_checkpoint_is_not_evaluated(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(f"{STUDY}evaluate: [reference_sql]\n")
    training, evaluation, *_ = jobs_of(read_study(file))
    refuse_missing_policies([Step(training, "run"), Step(evaluation, "run")])
    done = Step(training, "skip", tmp_path / "run")
    with pytest.raises(UserError, match="has no checkpoint. Remove that folder"):
        refuse_missing_policies([done, Step(evaluation, "run")])
    refuse_missing_policies([done, Step(evaluation, "skip")])


def test_a_resumed_training_keeps_as_many_as_the_study_now_says(tmp_path: Path) -> None:
    planned = jobs(tmp_path, "train.keep_checkpoints=0")
    study = read_study(tmp_path / "small.yaml")
    folder = StudyFolder(tmp_path / "runs" / "small", study, planned)
    run = StudyRun(folder, [], lambda standings: None)
    resumed = run._arguments(Step(planned[0], "resume", tmp_path / "run"), None)
    assert resumed[-2:] == ["--set", "train.keep_checkpoints=0"]
