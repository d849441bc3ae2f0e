"""What training a role is worth: which evaluations answer it, and that each role is answered by whom it should be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from episode_rows import episode_of
from harness import UserError
from harness.cli import app
from harness.compare.comparison import compare
from harness.compare.selection import select
from harness.compare.states import read_state
from harness.config import load_config
from harness.mock_model.server import ScriptedServer
from harness.policies import resolve
from harness.runs.folder import RunFolder
from harness.runs.reading import read_run
from harness.runs.tables import conclude
from harness.training.data import load_data
from harness.training.provenance import model_hash
from harness.training.record import closed, run_record
from harness_teams.cli import app as command
from harness_teams.contribution import TRAINED, arms_of, groups_of
from harness_teams.teacher import script


def trained_run(root: Path, agent: str, checkpoint: str, *settings: str) -> RunFolder:
    """A finished training whose one checkpoint is a bundled policy, another one than it began with."""
    config = load_config(
        "cpu", None, ["train.steps=1", "rollout.concurrency=4", *settings], agent=agent
    )
    data, folder = load_data(config), RunFolder.create(root, agent)
    folder.write_config(config)
    record = run_record(
        config,
        folder,
        data.task_set,
        data.train,
        data.val,
        data.policy,
        "cpu",
        answers=data.answers,
    )
    folder.write(record)
    (folder.checkpoints / "global_step_1" / "actor").mkdir(parents=True)
    (folder.checkpoints / "latest_checkpointed_iteration.txt").write_text("1")
    shutil.copytree(resolve(checkpoint), folder.checkpoints / "global_step_1" / "hf")
    conclude(folder, closed(folder.read(), "finished", "", 1.0, {}))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return trained_run(tmp_path / "runs", "reference_sql", "pocket-probe", "task.val_limit=4")


def run_command(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(command, [str(one) for one in arguments], env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return 2, str(done.exception)
    return done.exit_code, done.stdout


def test_each_role_is_at_its_start_and_trained_alone_once() -> None:
    three = arms_of({"a": ["a"], "b": ["b"], "c": ["c", "d"]})
    assert {name: "".join(sorted(frozen)) for name, frozen in three.items()} == {
        TRAINED: "",
        "a at its start": "a",
        "b at its start": "b",
        "c at its start": "cd",
        "only a trained": "bcd",
        "only b trained": "acd",
        "only c trained": "ab",
        "all at their start": "abcd",
    }
    two = arms_of({"a": ["a"], "b": ["b"]})
    assert list(two) == [
        TRAINED,
        "a at its start, only b trained",
        "b at its start, only a trained",
        "all at their start",
    ]
    assert list(arms_of({"a": ["a"]})) == [TRAINED, "all at their start"]


@pytest.mark.slow
def test_roles_are_those_that_called_and_count_together_as_asked(run: RunFolder) -> None:
    assert list(groups_of(run)) == [
        "write_query",
        "check_query",
        "rewrite_query",
    ]  # no row says who called
    assert groups_of(run, ["write"]) == {
        "write": ["write_query", "rewrite_query"],
        "check_query": ["check_query"],
    }
    together = groups_of(run, ["write", "check"])
    assert together == {"write": ["write_query", "rewrite_query"], "check": ["check_query"]}
    row = episode_of(1, 1.0, call_roles=["check_query"])
    (run.logs / "episodes-1.jsonl").write_text(json.dumps(row) + "\n")
    assert list(groups_of(run)) == ["check_query"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--role", "chek_query"],
            "--role chek_query: no role of that name called the policy; did you mean 'check_",
        ),
        (
            ["--role", "write", "--role", "rewrite"],
            "both find rewrite_query: each role may be in one group only",
        ),
        (["--role", "("], "is no regular expression"),
        (["--step", "7"], "has no checkpoint of step 7; it has 1"),
        (
            ["--start", "pocket-sql", "--endpoint", "http://127.0.0.1:1/v1"],
            "either --start or --endpoint",
        ),
        (["--endpoint", "http://127.0.0.1:1/v1"], "--endpoint and --model must be given together"),
        (["--start", "./nowhere"], "--start ./nowhere: there is no folder nowhere"),
        (["--start", "pocket-sq"], "--start pocket-sq: "),
        (["--endpoint", "nowhere", "--model", "m"], "--endpoint nowhere: "),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_starts(
    run: RunFolder, options: list[str], message: str
) -> None:
    code, output = run_command(run.path, *options, "--runs-dir", run.path.parent)
    assert code == 2 and message in output and "\n" not in output and "roles." not in output
    assert [path.name for path in run.path.parent.iterdir()] == [run.id]


@pytest.mark.slow
def test_another_policy_than_the_run_began_with_is_not_taken_for_it(run: RunFolder) -> None:
    record = run.read()
    record["identity"]["model"] = "0123456789abcdef"
    run.write(record)
    code, output = run_command(run.path, "--runs-dir", run.path.parent)
    assert code == 2 and "is not the policy that" in output and "(0123456789abcdef)" in output
    with pytest.raises(UserError, match="answered no role"):
        settings = [
            f"roles.{role}.policy=pocket-sql"
            for role in ("write_query", "check_query", "rewrite_query")
        ]
        run.write_config(load_config("cpu", None, settings, agent="reference_sql", agent_match="x"))
        groups_of(run)


@pytest.mark.train
@pytest.mark.timeout(900)
def test_a_query_writer_and_its_checker_between_two_checkpoints(run: RunFolder) -> None:
    """Two real policies: every role is answered by the one that the arm says, and what is there is not made again."""
    ask = (run.path, "--role", "write", "--role", "check", "--runs-dir", run.path.parent)
    code, output = run_command(*ask, "--json")
    assert code == 0, output
    found = json.loads(output)
    folder = Path(found["folder"])
    trained, began = (
        model_hash(str(resolve("pocket-probe"))),
        model_hash(str(resolve("pocket-sql"))),
    )
    jobs = {job["arm"]: read_run(folder / str(job["run"])) for job in read_state(folder)["jobs"]}
    frozen = {arm: set(one.record["identity"].get("role_models", {})) for arm, one in jobs.items()}
    assert list(frozen.values()) == [
        set(),
        {"write_query", "rewrite_query"},
        {"check_query"},
        {"write_query", "check_query", "rewrite_query"},
    ]
    for one in jobs.values():
        identity = one.record["identity"]
        assert identity["model"] == trained and {*identity.get("role_models", {}).values()} <= {
            began
        }
        assert identity["sampling_val"]["temperature"] == 0 and one.record.get("parent") == {
            "run": run.id,
            "step": 1,
        }
    answers_by_arm = {
        arm: one.episodes.sort("task_id")["answer"].to_list() for arm, one in jobs.items()
    }
    first = {
        arm: [json.loads(one or "null") for one in map(json.dumps, answers)]
        for arm, answers in answers_by_arm.items()
    }
    whole, write, _, none = first.values()
    assert whole != none and write != whole  # the writer decides what is written
    accuracy = {arm: one.scores()["value"].mean() for arm, one in jobs.items()}
    worth = found["worth"]
    assert worth["all"]["alone"]["mean"] == pytest.approx(
        accuracy[TRAINED] - accuracy["all at their start"]
    )
    arm = "write at its start, only check trained"
    assert worth["write"]["without"]["mean"] == pytest.approx(accuracy[TRAINED] - accuracy[arm])
    assert worth["check"]["alone"]["mean"] == pytest.approx(
        accuracy[arm] - accuracy["all at their start"]
    )
    assert (
        worth["write"]["without"]["low"]
        <= worth["write"]["without"]["mean"]
        <= worth["write"]["without"]["high"]
    )

    there = sorted(path.name for path in folder.iterdir())
    code, output = run_command(*ask)
    assert code == 0 and sorted(path.name for path in folder.iterdir()) == there
    assert "gained by its training alone" in output and "lost without its training" in output
    shown = CliRunner().invoke(app, ["compare", str(folder)], env={"COLUMNS": "200"})
    assert (
        shown.exit_code == 0 and "varied by the study" in shown.stdout and "By role" in shown.stdout
    )


@pytest.mark.train
@pytest.mark.timeout(900)
def test_a_team_whose_members_are_replaced_by_perfect_ones(tmp_path: Path) -> None:
    """The start is perfect and the trained policy knows nothing of the task: who answers which role decides."""
    settings = ("task.name=pocket_split", "reward.name=stated", "task.val_limit=4", "max_turns=3")
    more = (
        "sampling.max_prompt_tokens=1500",
        "sampling.max_response_tokens=48",
        "sandbox.max_rows=20",
    )
    run = trained_run(
        tmp_path, "reference_team", "medical-tools", *settings, *more, "agent_match=planner"
    )
    with ScriptedServer(script) as server:
        where = ("--endpoint", server.base_url, "--model", server.model, "--runs-dir", tmp_path)
        code, output = run_command(
            run.path, "--role", "planner|critic", "--role", "worker", *where, "--json"
        )
        assert code == 0, output
    found: dict[str, Any] = json.loads(output)
    means = {arm: one["mean"] for arm, one in found["accuracy"].items()}
    assert means["all at their start"] == 1.0 and means[TRAINED] < 1.0
    assert found["worth"]["all"]["alone"]["mean"] == means[TRAINED] - 1.0
    jobs = compare(select([Path(found["folder"])]))["by_role"]
    perfect = jobs["all at their start"]
    assert {"planner", "critic"} < set(perfect) and perfect["planner"]["calls_per_rollout"][
        "mean"
    ] >= 2  # type: ignore[operator]
    lame = jobs[
        "planner|critic at its start, only worker trained"
    ]  # they hand over, and get no good report
    assert lame["planner"]["calls_per_rollout"]["mean"] >= 2 and "worker_a" in lame  # type: ignore[operator]
    assert means["planner|critic at its start, only worker trained"] < 1.0
