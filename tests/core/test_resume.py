"""What may change when a run goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file  # not torch's, which takes seconds to import
from typer.testing import CliRunner

from episode_rows import episode_of
from harness.cli.train import app
from harness.config import load_config
from harness.errors import UserError
from harness.plugins import make_task_set
from harness.policies import resolve
from harness.runs.folder import RowLog, RunFolder
from harness.training.data import same_parts
from harness.training.launch import StartedRun, validated, validation_due
from harness.training.record import run_record
from harness_sql.tasks.pocket import PocketTasks


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = RunFolder.create(tmp_path, "reference_sql")
    config = load_config("cpu", agent="reference_sql")
    folder.write_config(config)
    record = run_record(
        config, folder, make_task_set(config), [], [], resolve(config.policy.path), "cpu"
    )
    folder.write(record | {"status": "interrupted"})
    return folder.path


@pytest.mark.parametrize(
    "change", ["train.steps=30", "policy.path=/elsewhere", "rollout.runners=3"]
)
def test_how_far_and_where_may_change(run: Path, change: str) -> None:
    done = CliRunner().invoke(app, ["--resume", str(run), "--set", change, "--dry-run"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    "change", ["train.learning_rate=1e-3", "max_turns=1", "agent=langgraph_sql", "seed=4"]
)
def test_what_would_be_another_run_is_refused(run: Path, change: str) -> None:
    key = change.partition("=")[0]
    done = CliRunner().invoke(app, ["--resume", str(run), "--set", change, "--dry-run"])
    message = f"{done.output}{done.exception}"
    assert done.exit_code != 0 and f"--resume with {key}=" in message
    assert ("the run's agent is another" in message) == (key == "agent")
    assert "task.options" not in message, "keys that have nothing to do with the change"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--agent", "langgraph_sql"], "the run's agent is reference_sql"),
        (["--agent", "reference_sql"], "leave out --agent."),
        (["--agent-match", ".", "--seed", "4"], "leave out --agent-match, --seed."),
    ],
)
def test_an_option_of_a_new_run_is_refused_by_its_name(
    run: Path, options: list[str], message: str
) -> None:
    done = CliRunner().invoke(app, ["--resume", str(run), *options, "--dry-run"])
    assert isinstance(done.exception, UserError) and message in str(done.exception)
    assert "task.options" not in str(done.exception), "keys that have nothing to do with it"


def test_an_evaluation_cannot_be_trained_on(run: Path) -> None:
    RunFolder(run).update(kind="eval")
    done = CliRunner().invoke(app, ["--resume", str(run), "--dry-run"])
    assert isinstance(done.exception, UserError) and "of kind 'eval'" in str(done.exception)


def test_a_run_that_is_still_running_is_left_alone(run: Path) -> None:
    with RunFolder(run).locked():
        done = CliRunner().invoke(app, ["--resume", str(run)])
    assert isinstance(done.exception, UserError) and "still running" in str(done.exception)
    assert RunFolder(run).read()["status"] == "interrupted"


@pytest.mark.parametrize(
    ("rows", "ended"),
    [
        ([1.0, 0.0, 1.0, 0.0], True),
        ([1.0, 0.0, 1.0], False),  # cut off
        ([1.0, None, None, None], False),  # ended the run
        ([1.0, 0.0, None, None], True),
    ],
)
def test_a_validation_after_the_checkpoint_counts_once_it_is_whole(
    run: Path, rows: list[float | None], ended: bool
) -> None:
    folder = RunFolder(run)
    log = RowLog(folder, "episodes")
    log.add([episode_of(5, reward, "val") for reward in rows])
    log.add([episode_of(5, 1.0), episode_of(0, 1.0, "val")])
    config = folder.config()
    task_set = make_task_set(config)
    live = StartedRun(config, folder, task_set, [], task_set.load("val")[:4], "m", "cpu")
    assert validated(live, 5) is ended


def test_when_a_validation_is_due() -> None:
    every = load_config("cpu", None, ["train.val_every=5"], agent="reference_sql").train
    assert [step for step in range(13) if validation_due(every, 12, step)] == [5, 10, 12]
    never = load_config("cpu", None, ["train.val_every=0"], agent="reference_sql").train
    assert [step for step in range(13) if validation_due(never, 12, step)] == [12]


def test_a_run_goes_on_with_the_policy_and_the_agent_that_it_began_with(
    run: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(resolve("pocket-sql"), other)
    same_parts(
        RunFolder(run),
        load_config("cpu", None, [f"policy.path={other}"], agent="reference_sql"),
        PocketTasks(),
    )
    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, other / "model.safetensors")
    done = CliRunner().invoke(app, ["--resume", str(run), "--set", f"policy.path={other}"])
    assert isinstance(done.exception, UserError) and "the policy is not the one" in str(
        done.exception
    )
    trained = ["reward.training=executes"]
    with pytest.raises(UserError, match="the training reward is not the one"):
        same_parts(
            RunFolder(run), load_config("cpu", None, trained, agent="reference_sql"), PocketTasks()
        )
    RunFolder(run).update(agent_source="0123456789abcdef")
    done = CliRunner().invoke(app, ["--resume", str(run)])
    assert isinstance(done.exception, UserError) and "the agent is not the one" in str(
        done.exception
    )


def test_what_is_asked_for_by_name_counts_before_a_short_runs_defaults() -> None:
    short = [
        "--ci-fast",
        "--plugin",
        "reference_sql",
        "--set",
        "train.val_every=7",
        "--dry-run",
        "--json",
    ]
    found = json.loads(CliRunner().invoke(app, short).output)
    assert (found["train"]["val_every"], found["train"]["batch_size"], found["train"]["steps"]) == (
        7,
        4,
        1,
    )
