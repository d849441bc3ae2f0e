"""`harness study` end to end: plan, run, kill, go on, fail, and the order that favours no arm."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.compare.comparison import compare
from harness.compare.formats import render
from harness.compare.selection import select
from harness.config import Config
from harness.contracts.hookspecs import RewardSpec
from harness.errors import ConfigError
from harness.runs.folder import RunFolder
from harness_study.launchers import Local
from harness_study.plan import Study, jobs_of, read_study

Harness = Callable[..., "subprocess.CompletedProcess[str]"]


def records(folder: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*/run.json"))]


def wait_until(condition: Callable[[], bool], timeout_s: float = 300) -> None:
    """The bound is there against waiting for ever: how long a loaded machine takes to start runs is not tested."""
    ends = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends, "it never happened"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_plan_warns_where_equivalent_is_out_of_reach(harness: Harness, study_file: Path) -> None:
    text = study_file.read_text()
    for margin, least, counts in ((0.05, 14, (13, 14)), (0.08, 8, (7, 8)), (None, None, (1,))):
        lines = [line for line in text.splitlines() if not line.startswith("margin:")]
        study_file.write_text("\n".join([*lines, f"margin: {margin}"] if margin else lines))
        for seeds in counts:
            numbers = ",".join(map(str, range(seeds)))
            plan = ("study", str(study_file), "--dry-run", "--seeds", numbers)
            found = json.loads(harness(*plan, "--json").stdout).get("seeds_for_equivalence")
            assert found == (least if least is not None and seeds < least else None)
    study_file.write_text("\n".join([*lines, "margin: 0.05"]))
    shown = " ".join(harness("study", str(study_file), "--dry-run", "--seeds", "0").stdout.split())
    assert "Equivalence is impossible with 1 seed at" in shown and "at least 14 seeds" in shown


@pytest.mark.slow
def test_a_study_runs_once_and_a_second_start_repeats_nothing(
    harness: Harness, study_file: Path, tmp_path: Path
) -> None:
    done = harness("study", str(study_file), "--seeds", "0")
    assert done.returncode == 0, done.stderr
    output = done.stderr.splitlines()
    assert [line.split()[0] for line in output if line.endswith(": started")] == ["[1/2]", "[2/2]"]
    assert sum(": finished, accuracy " in line for line in output) == 2
    found = records(tmp_path / "runs" / "small")
    assert [(record["status"], record["config"]["max_turns"]) for record in found] == [
        ("finished", 2),
        ("finished", 1),
    ]  # type: ignore[index]
    state = tmp_path / "runs" / "small" / "study.json"
    noted = json.loads(state.read_text())
    noted["jobs"][0] |= {
        "state": "running",
        "launcher": "slurm",
    }  # by a start that ended first, on another machine
    state.write_text(json.dumps(noted))
    again = harness("study", str(study_file), "--dry-run", "--json")
    plan = json.loads(again.stdout)
    actions = {(job["arm"], job["seed"]): job["action"] for job in plan["jobs"]}
    assert actions == {
        ("two turns", 0): "skip",
        ("one turn", 0): "skip",
        ("two turns", 1): "run",
        ("one turn", 1): "run",
    }
    assert plan["estimate_s"] > 0 and list(plan["differences"]) == ["max_turns"]
    assert records(tmp_path / "runs" / "small") == found
    data = compare(select([study_file], tmp_path / "runs"))
    assert data["margin"] == 0.2 and [(one["key"], one["why"]) for one in data["exceptions"]] == [
        ("max_turns", "varied")
    ]


@pytest.mark.slow
def test_a_seed_whose_arm_was_changed_is_left_out_and_named_until_it_runs_again(
    harness: Harness, study_file: Path, tmp_path: Path
) -> None:
    def seeds_after(*options: str) -> tuple[dict[str, list[int]], list[str]]:
        done = harness("study", str(study_file), *options)
        assert done.returncode == 0, done.stderr
        found = compare(select([study_file], tmp_path / "runs"))
        return {arm["name"]: arm["seeds"] for arm in found["arms"]}, found["missing"]

    whole: dict[str, list[int]] = {"two turns": [0, 1], "one turn": [0, 1]}
    assert seeds_after() == (whole, [])
    before = study_file.read_text()
    study_file.write_text(before.replace("one turn: 1", "one turn: 3"))
    seeds, missing = seeds_after("--seeds", "0")
    assert seeds == {"two turns": [0, 1], "one turn": [0]}
    (text,) = missing
    assert text.startswith("one turn seed 1: ") and "has max_turns=1, which the study has" in text
    # With the earlier file, the earlier runs count again.
    after = study_file.read_text()
    study_file.write_text(before)
    assert seeds_after("--seeds", "0") == (whole, [])
    study_file.write_text(after)
    assert seeds_after() == (whole, [])
    turns = {record["config"]["max_turns"] for record in records(tmp_path / "runs" / "small")}  # type: ignore[index]
    assert turns == {1, 2, 3}


@pytest.mark.slow
def test_a_margin_that_is_changed_after_the_results_does_not_pass_for_the_first_one(
    harness: Harness, study_file: Path, tmp_path: Path
) -> None:
    state = tmp_path / "runs" / "small" / "study.json"
    one_run = ("study", str(study_file), "--seeds", "0", "--only", "max_turns=two turns")
    assert harness(*one_run).returncode == 0
    # An older version did not record by launch what the file stated.
    noted = json.loads(state.read_text())
    for key in ("margin", "baseline", "checkpoint"):
        del noted["launches"][0][key]
    state.write_text(json.dumps(noted))
    study_file.write_text(study_file.read_text().replace("margin: 0.2", "margin: 0.6"))
    assert harness(*one_run).returncode == 0
    launches = json.loads(state.read_text())["launches"]
    assert [launch["margin"] for launch in launches] == [0.2, 0.6]
    assert [launch["baseline"] for launch in launches] == ["two turns", "two turns"]
    (exempt,) = compare(select([study_file], tmp_path / "runs"))["exceptions"]
    assert (exempt["key"], exempt["why"]) == ("margin", "changed")
    assert exempt["values"] == {"first": 0.2, "now": 0.6}


@pytest.mark.slow
def test_a_killed_study_goes_on_where_it_was_and_does_no_run_twice(
    harness: Harness, start: Callable[..., subprocess.Popen[str]], study_file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "small"
    slow = (
        "study",
        str(study_file),
        "--seeds",
        "0",
        "--only",
        "max_turns=one turn",
        "--set",
        "verl.sleep_s=0.8",
    )
    process = start(*slow)
    wait_until(
        lambda: any(
            (path.parent / "checkpoints").glob("*.txt") for path in folder.glob("*/run.json")
        )
    )
    process.kill()  # no chance to clean up: the training goes on alone
    process.communicate()
    done = harness(*slow)
    assert done.returncode == 0, done.stderr
    found = records(folder)
    assert [record["status"] for record in found] == ["finished"]
    assert len(found[0]["launches"]) == 1  # type: ignore[arg-type]


@pytest.mark.slow
def test_ctrl_c_ends_promptly_and_the_next_start_resumes(
    harness: Harness, start: Callable[..., subprocess.Popen[str]], study_file: Path, tmp_path: Path
) -> None:
    folder, gate = tmp_path / "runs" / "small", tmp_path / "gate"
    called = (
        "study",
        str(study_file),
        "--only",
        "max_turns=two turns",
        "--set",
        f"verl.gate={gate}",
    )
    process = start(*called)
    assert process.stderr is not None
    assert any("step 0 of 3, accuracy " in line for line in process.stderr), (
        "it never said how far the run is"
    )
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, output = process.communicate(timeout=20)
    assert process.returncode == 130 and time.monotonic() - began < 10
    assert (
        f"0 of 2 runs are done, and the progress of the others is kept. Resume: {shlex.join(['harness', *called])}\n"
        in output
    )
    assert [record["status"] for record in records(folder)] == ["interrupted"]
    gate.touch()
    done = harness(*called, "--seeds", "0")
    assert done.returncode == 0, done.stderr
    (record,) = records(folder)
    assert record["status"] == "finished" and len(record["launches"]) == 2  # type: ignore[arg-type]


@pytest.mark.slow
def test_an_interrupted_study_whose_folder_is_moved_goes_on_there(
    harness: Harness, start: Callable[..., subprocess.Popen[str]], study_file: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    selected = ("--only", "max_turns=two turns", "--set", f"verl.gate={gate}")
    called = ("study", str(study_file), *selected)
    gate.touch()
    first = harness(*called, "--seeds", "0")
    assert first.returncode == 0, first.stderr
    gate.unlink()
    process = start(*called)
    assert process.stderr is not None
    assert any("step 0 of 3, accuracy " in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    begun = {record["id"] for record in records(tmp_path / "runs" / "small")}
    moved = tmp_path / "elsewhere" / "results"
    moved.parent.mkdir()
    (tmp_path / "runs").rename(moved)
    gate.touch()
    done = harness(*called, "--runs-dir", str(moved))
    assert done.returncode == 0, done.stderr
    found = records(moved / "small")
    assert {record["id"] for record in found} == begun
    assert [(record["status"], len(record["launches"])) for record in found] == [  # type: ignore[arg-type]
        ("finished", 1),
        ("finished", 2),
    ]
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_run_whose_folder_is_removed_does_not_stop_the_others(
    harness: Harness, study_file: Path, tmp_path: Path
) -> None:
    arguments = (
        "study",
        str(study_file),
        "--set",
        "verl.removed_seed=0",
        "--only",
        "max_turns=two turns",
    )
    done = harness(*arguments)
    assert (
        done.returncode == 1 and "1 of 2 runs failed" in done.stderr and "finished " in done.stdout
    )
    assert [record["status"] for record in records(tmp_path / "runs" / "small")] == ["finished"]
    jobs = json.loads((tmp_path / "runs" / "small" / "study.json").read_text())["jobs"]
    assert [(job["state"], bool(job["run"])) for job in jobs] == [
        ("failed", False),
        ("finished", True),
    ]


@pytest.mark.slow
def test_a_failed_run_does_not_stop_the_others_and_is_told(
    harness: Harness, study_file: Path, tmp_path: Path
) -> None:
    arguments = (
        "study",
        str(study_file),
        "--set",
        "verl.fail_seed=0",
        "--only",
        "max_turns=two turns",
    )
    done = harness(*arguments)
    assert done.returncode == 1
    assert "1 of 2 runs failed" in done.stderr and "fell off the bus" in done.stderr
    assert [record["status"] for record in records(tmp_path / "runs" / "small")] == [
        "failed",
        "finished",
    ]
    text = render(compare(select([tmp_path / "runs" / "small"])), "md")
    assert "fell off the bus" in text and "one seed" in text


@pytest.mark.slow
def test_a_run_whose_ray_did_not_start_is_started_again(
    harness: Harness, study_file: Path, tmp_path: Path
) -> None:
    only = ("--only", "max_turns=one turn", "--seeds", "0")
    done = harness("study", str(study_file), *only, "--set", "verl.ray_was_slow=true")
    assert done.returncode == 0, done.stderr
    (record,) = records(tmp_path / "runs" / "small")
    assert record["status"] == "finished" and len(record["launches"]) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("seeds", ["0,0", "1,0,1"])
def test_a_repeated_seed_of_the_command_line_is_named(
    seeds: str, harness: Harness, study_file: Path
) -> None:
    done = harness("study", str(study_file), "--dry-run", "--seeds", seeds)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert f"--seeds {seeds}: seed {seeds[-1]} is repeated; remove one" in done.stderr


def test_two_processes_never_run_one_study(study_file: Path, tmp_path: Path) -> None:
    from harness.errors import UserError
    from harness_study.state import StudyFolder

    study = read_study(study_file)
    first, second = (
        StudyFolder(tmp_path / "runs" / "small", study, jobs_of(study)) for _ in range(2)
    )
    with first.locked(), pytest.raises(UserError, match="already running"), second.locked():
        pass


def test_a_baseline_that_names_no_arm_is_refused_before_anything_runs(
    here: Harness, study_file: Path, tmp_path: Path
) -> None:
    text = study_file.read_text()
    study_file.write_text(text.replace("baseline: two turns", "baseline: two turn"))
    for more in ((), ("--dry-run",)):
        done = here("study", str(study_file), *more)
        assert (
            done.returncode == 2
            and done.stderr.count("\n") == 1
            and not (tmp_path / "runs").exists()
        )
        assert (
            "no arm called 'two turn'; did you mean 'two turns'? Arms: 'two turns', 'one turn'"
            in done.stderr
        )
    study = read_study(study_file)
    study.baseline = "langgraph_sql"  # the agent of both
    with pytest.raises(
        ConfigError, match=r"baseline: 'langgraph_sql' is in 2 arms\. Name one of them"
    ):
        jobs_of(study)
    study.matrix["max_turns"] = {"one turn": 1}
    assert jobs_of(study)
    study.evaluate, study.baseline = (
        ["reference_sql", "crewai_sql"],
        "one turn",
    )  # trained, but not compared
    with pytest.raises(
        ConfigError, match=r"Arms: 'one turn -> reference_sql', 'one turn -> crewai_sql'"
    ):
        jobs_of(study)
    study.baseline = "crewai_sql"
    assert jobs_of(study, only=["max_turns=one turn"])
    alone = jobs_of(study, only=["max_turns=one turn", "evaluate=crewai_sql"])
    assert [job.arm for job in alone] == ["one turn", "one turn -> crewai_sql"] * len(
        study.matrix["seed"]
    )
    with pytest.raises(ConfigError, match=r"no arm of study .* matches --only evaluate=crew"):
        jobs_of(study, only=["evaluate=crew"])


def test_a_policy_or_questions_that_are_not_here_are_told_before_anything_starts(
    here: Harness, study_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("VERL_SPIDER_DATA_DIR", "/nowhere")
    for setting, message in (
        ("policy.path=spider-sql", "make it in a checkout"),
        ("policy.path=/nowhere", "there is no folder /nowhere"),
        ("task.name=spider", "Spider's prepared folder /nowhere is not there"),
        ("roles.check_query.policy=spider-sql", "roles.check_query: policy 'spider-sql' is not in"),
        ("task.name=files --set task.options.path=/no/such.jsonl", "no file /no/such.jsonl"),
    ):
        done = here("study", str(study_file), "--set", *setting.split())
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
        assert not list((tmp_path / "runs").rglob("run.json")) and not list(
            (tmp_path / "runs").rglob("*.log")
        )
    study = read_study(study_file)
    study.evaluate, study.baseline = ["reference_sql"], "two turns -> reference_sql"
    training, evaluation, *_ = jobs_of(study, ["policy.path=spider-sql"])
    with pytest.raises(ConfigError, match="make it in a checkout"):
        Local().check(training)
    Local().check(evaluation)  # of a policy that was trained
    cluster, *_ = jobs_of(study, ["policy.path=nobody/has-this", "ray_address=auto"])
    Local().check(cluster)  # nodes of a cluster download it themselves


def test_a_trainer_that_is_not_installed_is_told_before_anything_is_announced(
    here: Harness, study_file: Path, tmp_path: Path
) -> None:
    lacks = ("--set", "train.trainer=synthetic", "--set", "verl.not_installed=true")
    training = ("train", "--plugin", "reference_sql", "--preset", "cpu")
    for command in (("study", str(study_file)), training):
        done = here(*command, *lacks)
        assert (done.returncode, done.stderr) == (
            2,
            "harness: synthetic is not installed: install it\n",
        )
        assert not done.stdout and not (tmp_path / "runs").exists()
        assert here(*command, *lacks, "--dry-run").returncode == 0, "a plan needs no trainer"


def test_numbers_of_a_study_are_numbers_and_name_arms_as_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "rates.yaml"
    file.write_text(
        "preset: cpu\n"
        "set: {agent: reference_sql, verl.eps: 1e-8, task.options.data_dir: '12e3'}\n"
        "matrix: {train.learning_rate: [1e-6, 5e-4, 2.0e-4], seed: [0]}\n"
        "baseline: learning_rate=1e-6\n"
    )
    study = read_study(file)
    rates = {}
    for job in jobs_of(study):
        rates[job.arm] = job.config.train.learning_rate
        assert job.config.verl["eps"] == 1e-8
        assert job.config.task.options["data_dir"] == "12e3"
    assert rates == {
        "learning_rate=1e-6": 1e-6,
        "learning_rate=5e-4": 5e-4,
        "learning_rate=0.0002": 2e-4,
    }
    (chosen,) = jobs_of(study, only=["train.learning_rate=5e-4"])
    assert chosen.arm == "learning_rate=5e-4"


def test_arms_take_turns_at_being_first(study_file: Path) -> None:
    study = read_study(study_file)
    study.matrix["seed"] = [0, 1, 2, 3]
    jobs = jobs_of(study)
    assert [job.seed for job in jobs] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert Counter(job.arm for job in jobs[::2]) == {"two turns": 2, "one turn": 2}


STUDIES = Path(__file__).parents[2] / "configs" / "studies"
SHIPPED = sorted(str(path.relative_to(STUDIES).with_suffix("")) for path in STUDIES.rglob("*.yaml"))


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_studies_resolve_and_vary_only_what_they_say(name: str) -> None:
    from harness_study.plan import differences

    study = read_study(Path(name))
    jobs = jobs_of(study)
    varied = {key for settings in study.arms.values() for key in settings} | set(study.matrix) - {
        "seed"
    }
    assert set(differences(jobs)) == varied
    by_seed: dict[int, set[str]] = {}
    for job in jobs:
        by_seed.setdefault(job.seed, set()).add(job.arm)
    assert len({frozenset(arms) for arms in by_seed.values()}) == 1


def test_agent_match_and_frameworks_share_the_runs_of_one_arm(tmp_path: Path) -> None:
    """Finished runs of the one count in the other, where they are put into its folder."""
    shared = {job.config_hash: job for job in jobs_of(read_study(Path("frameworks")))}
    found = [
        (job.arm, shared[job.config_hash].arm)
        for job in jobs_of(read_study(Path("agent_match")))
        if job.config_hash in shared
    ]
    assert found == [("write and rewrite", "langgraph_sql")] * 8


def test_labels_of_one_axis_add_up_and_axes_narrow() -> None:
    study = read_study(Path("agent_match"))
    jobs = jobs_of(study, (), ("agent_match=all roles", "agent_match=first query only"))
    assert {job.arm for job in jobs} == {"all roles", "first query only"}
    with pytest.raises(ConfigError, match="no arm"):
        jobs_of(study, (), ("agent_match=no such",))


def test_every_arm_of_agent_match_trains_other_roles() -> None:
    import re

    from harness.plugins import agent_spec

    arms = {job.arm: job.config for job in jobs_of(read_study(Path("agent_match")))}
    trained = {
        tuple(
            role for role in agent_spec(config.agent).roles if re.search(config.agent_match, role)
        )
        for config in arms.values()
    }
    assert len(trained) == len(arms) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "matrix: {agent: reference_sql}",
            "'matrix.agent': Input should be a valid list, got 'reference_sql'",
        ),
        ("matirx: {}", "did you mean 'matrix'"),
        ("matrix: {agent: []}", "has no values"),
        ("matrix: {train.stepps: [1]}", "did you mean 'train.steps'"),
        ("margin: 5", "less than 1"),
        ("- a", "must hold a mapping"),
        ("matrix: {max_turns: [1, 1]}", "the same run twice"),
        ("arms: {a: {max_turns: 1}, a: {max_turns: 2}}", "line 1: the key 'a' is repeated"),
        ("matrix: {seed: ['00', 0]}", "a seed must be a whole number, got '00'"),
        ("matrix: {seed: [true, 2]}", "a seed must be a whole number, got True"),
        ("matrix: {seed: [1, 1]}", "seed 1 is repeated"),
        ("evaluate_split: dev", "'evaluate_split' needs evaluations, and the study has none"),
        ("read_reserved: true", "'read_reserved' needs evaluations"),
        (f"name: {'n' * 101}", "'name': String should have at most 100 characters"),
    ],
)
def test_mistakes_in_a_study_file_are_told_in_a_line(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        jobs_of(read_study(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("section", "options", "message"),
    [
        ("{slrum: {partition: gpu}}", (), "no launcher called 'slrum'; did you mean 'slurm'?"),
        (
            "{slurm: {partitoin: gpu}}",
            (),
            "launcher.slurm.partitoin: 'slurm' has no option of that name; did you mean 'partition'?",
        ),
        (
            "{}",
            ("--launch", "cpus=4"),
            "--launch.cpus: 'local' has no option of that name. Its options: none",
        ),
        ("{}", ("--launcher", "slrum"), "no launcher called 'slrum'; did you mean 'slurm'?"),
        (
            "{}",
            ("--launcher", "slurm", "--launch", "cpus=many"),
            "--launch.cpus of 'slurm': Input should be a valid integer",
        ),
        ("{}", ("--launch", "cpus"), "--launch takes key=value, got 'cpus'"),
    ],
)
def test_mistakes_in_options_of_launchers_are_told_before_anything_runs(
    section: str,
    options: tuple[str, ...],
    message: str,
    here: Harness,
    study_file: Path,
    tmp_path: Path,
) -> None:
    study_file.write_text(f"{study_file.read_text()}launcher: {section}\n")
    done = here("study", str(study_file), *options)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1, (
        done.stderr
    )
    assert not (tmp_path / "runs").exists()


def test_a_margin_is_in_units_of_the_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "points.yaml"
    path.write_text("margin: 5\nset: {reward.name: points}\n")
    points = RewardSpec("points", "nowhere:Points", "0 to 100", high=100.0)
    monkeypatch.setattr("harness.plugins.reward_spec", lambda name: {"points": points}[name])
    assert len(jobs_of(read_study(path))) == 1
    path.write_text("margin: 100\nset: {reward.name: points}\n")
    with pytest.raises(ConfigError, match="100 is not less than 100"):
        jobs_of(read_study(path))


@pytest.fixture
def agents_file(
    study_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Path]:
    """A study of the reference and another agent, where no certificate was made yet."""
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "cache"))

    def written(agent: str) -> Path:
        text = study_file.read_text().replace("baseline: two turns", "baseline: reference_sql")
        text = text.replace(
            "max_turns: {two turns: 2, one turn: 1}", f"agent: [reference_sql, {agent}]"
        )
        study_file.write_text(text.replace("seed: [0, 1]", "seed: [0]"))
        return study_file

    return written


@pytest.mark.slow
def test_missing_parity_certificates_are_made_before_the_first_run(
    harness: Harness, agents_file: Callable[[str], Path], tmp_path: Path
) -> None:
    file = str(agents_file("same_sql"))
    planned = harness("study", file, "--dry-run")
    assert (
        "No parity certificate: same_sql. Created before the first run" in planned.stdout
        and not (tmp_path / "cache").exists()
    )
    done = harness("study", file)
    assert done.returncode == 0, done.stderr
    first = done.stderr.splitlines()[0]
    assert first == "no parity certificate for same_sql: creating it first, from scripted episodes"
    (certificate,) = (tmp_path / "cache" / "parity").glob("same_sql-*.json")
    found = {record["agent"]: record["parity"] for record in records(tmp_path / "runs" / "small")}
    assert found["same_sql"] == json.loads(certificate.read_text())
    again = harness("study", file, "--dry-run", "--json")
    assert "uncertified" not in json.loads(again.stdout)


@pytest.mark.slow
def test_a_failing_parity_refuses_a_study_and_names_the_cause(
    harness: Harness, agents_file: Callable[[str], Path], tmp_path: Path
) -> None:
    file = str(agents_file("skips_sql"))
    refused = harness("study", file)
    assert refused.returncode == 2 and not (tmp_path / "runs").exists()
    last = refused.stderr.splitlines()[-1]
    assert (
        last.startswith("harness: skips_sql fails parity, so a comparison would be refused")
        and last in refused.stderr
    )
    assert (
        ": sequence of roles: expected " in last and "`harness parity skips_sql` shows all" in last
    )
    anyway = harness("study", file, "--without-parity")
    assert anyway.returncode == 0, anyway.stderr


two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


@pytest.mark.slow
@two_cores
def test_runs_side_by_side_have_cores_of_their_own_and_say_so(
    harness: Harness, study_file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "small"
    done = harness("study", str(study_file), "--jobs", "2", "--set", "verl.sleep_s=1.2")
    assert done.returncode == 0, done.stderr
    assert "2 at a time with" in done.stderr
    found = records(folder)
    assert [record["status"] for record in found] == ["finished"] * 4
    share = len(os.sched_getaffinity(0)) // 2
    launches: list[Any] = [record["launches"][0] for record in found]  # type: ignore[index]
    assert all(launch["cores"] <= share and launch["runs_at_once"] == 2 for launch in launches)
    spans = sorted((launch["started"], launch["ended"]) for launch in launches)
    assert spans[1][0] <= spans[0][1]  # the second started before the first had ended
    state = json.loads((folder / "study.json").read_text())
    (launch,) = state["launches"]
    first, second = (set(slot["cores"]) for slot in launch["slots"])
    assert (
        launch["runs_at_once"] == 2 and first and len(first) == len(second) and not first & second
    )
    jobs = {job["key"]: job["run"] for job in state["jobs"]}
    assert jobs == {record["study"]["job"]: record["id"] for record in found}  # type: ignore[index]
    data = compare(select([folder]))
    assert any("2 runs at a time" in remark for remark in data["remarks"])


@pytest.mark.slow
@two_cores
def test_a_killed_study_waits_for_all_that_still_run(
    harness: Harness, start: Callable[..., subprocess.Popen[str]], study_file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "small"
    gate = tmp_path / "gate"
    arguments = (
        "study",
        str(study_file),
        "--jobs",
        "2",
        "--seeds",
        "0",
        "--set",
        f"verl.gate={gate}",
    )
    process = start(*arguments)
    wait_until(lambda: len(list(folder.glob("*/run.json"))) == 2)
    process.kill()
    process.communicate()
    again = start(*arguments)
    wait_until(
        lambda: len(json.loads((folder / "study.json").read_text())["launches"]) == 2
    )  # it waits for both
    gate.touch()
    _, output = again.communicate(timeout=90)
    assert again.returncode == 0 and output.count("by an earlier launch") == 2, output
    found = records(folder)
    assert [(record["status"], len(record["launches"])) for record in found] == [
        ("finished", 1)
    ] * 2  # type: ignore[arg-type]


@pytest.mark.slow
@two_cores
def test_ctrl_c_ends_all_that_run_and_the_next_start_resumes_them(
    harness: Harness, start: Callable[..., subprocess.Popen[str]], study_file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "small"
    gate = tmp_path / "gate"
    arguments = (
        "study",
        str(study_file),
        "--jobs",
        "2",
        "--seeds",
        "0",
        "--set",
        f"verl.gate={gate}",
    )
    process = start(*arguments)
    wait_until(lambda: len(list(folder.glob("*/checkpoints/*.txt"))) == 2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert [record["status"] for record in records(folder)] == ["interrupted"] * 2
    assert {job["state"] for job in json.loads((folder / "study.json").read_text())["jobs"]} == {
        "interrupted"
    }
    gate.touch()
    done = harness(*arguments)
    assert done.returncode == 0, done.stderr
    found = records(folder)
    assert [(record["status"], len(record["launches"])) for record in found] == [
        ("finished", 2)
    ] * 2  # type: ignore[arg-type]


def recording(tmp_path: Path, text: str, gpus: list[tuple[str, ...] | None]) -> Any:
    """A study whose runs are a command that only writes records, a slot for each entry of `gpus`."""
    from harness_study.execute import StudyRun
    from harness_study.slots import Slot
    from harness_study.state import StudyFolder

    command, file = tmp_path / "command.py", tmp_path / "small.yaml"
    command.write_text(f"RECORD = {str(RECORD)!r}\n{COMMAND}")
    file.write_text(text)
    study = read_study(file)
    jobs = jobs_of(study)
    folder = StudyFolder(tmp_path / "runs", study, jobs)
    slots = [Slot(index, frozenset(os.sched_getaffinity(0)), one) for index, one in enumerate(gpus)]
    command_line = [sys.executable, str(command)]
    return (
        study,
        jobs,
        folder,
        StudyRun(folder, folder.next_steps(jobs), lambda _: None, slots, command=command_line),
    )


def test_evaluations_report_on_a_split_that_trainings_were_not_validated_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness_study.state import StudyFolder

    monkeypatch.setattr("harness_study.execute.START_GAP_S", 0.0)
    text = (
        "set: {task.name: spider, task.val_split: dev_500, task.val_limit: 40}\n"
        "matrix: {agent: [reference_sql], seed: [0]}\n"
        "evaluate: [reference_sql]\nevaluate_split: dev_rest\n"
    )
    study, jobs, folder, run = recording(tmp_path, text, [None])
    training, evaluation = jobs
    assert (training.config.task.val_split, training.config.task.val_limit) == ("dev_500", 40)
    assert (evaluation.config.task.val_split, evaluation.config.task.val_limit) == (
        "dev_rest",
        None,
    )
    assert [one.state for one in run.execute()] == ["finished"] * 2
    made = json.loads(
        (folder.path / folder.entries[evaluation.key]["run"] / "run.json").read_text()
    )
    assert made["arguments"][2:6] == ["--agent", "reference_sql", "--split", "dev_rest"]
    again = StudyFolder(tmp_path / "runs", study, jobs)
    assert {step.action for step in again.next_steps(jobs)} == {"skip"}


def test_a_study_reads_a_reserved_split_only_where_its_file_says_so(
    here: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness_study.execute.START_GAP_S", 0.0)
    text = (
        "preset: pocket-probe\nmatrix: {agent: [reference_sql], seed: [0]}\n"
        "evaluate: [reference_sql]\nevaluate_split: test\n"
    )
    file = tmp_path / "reading.yaml"
    file.write_text(text)
    done = here("study", str(file), "--dry-run")
    assert done.returncode == 2 and "is for one reading at the end" in done.stderr
    file.write_text(f"{text}read_reserved: true\n")
    assert here("study", str(file), "--dry-run").returncode == 0
    file.write_text(f"{text}read_reserved: true\nset: {{task.val_split: test}}\n")
    done = here("study", str(file), "--dry-run")
    assert done.returncode == 2 and "is for one reading at the end" in done.stderr

    _, (_, evaluation), folder, run = recording(tmp_path, f"{text}read_reserved: true\n", [None])
    assert [one.state for one in run.execute()] == ["finished"] * 2
    made = json.loads(
        (folder.path / folder.entries[evaluation.key]["run"] / "run.json").read_text()
    )
    assert made["arguments"][4:7] == ["--split", "test", "--read-reserved"]


def test_an_evaluation_waits_for_the_training_of_its_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four jobs at a time, a command that only writes records: evaluations of two policies look alike."""
    from harness_study.state import StudyFolder

    monkeypatch.setattr("harness_study.execute.START_GAP_S", 0.0)
    text = "matrix: {agent: [reference_sql, langgraph_sql], seed: [0]}\nevaluate: [reference_sql, langgraph_sql]\n"
    study, jobs, folder, run = recording(tmp_path, text, [None] * 4)
    assert [one.state for one in run.execute()] == ["finished"] * 6
    for job in jobs:
        if job.parent:
            made = json.loads(
                (folder.path / folder.entries[job.key]["run"] / "run.json").read_text()
            )
            assert made["study"]["job"] == job.key
            assert made["arguments"][1] == str(folder.path / folder.entries[job.parent]["run"])
    again = StudyFolder(tmp_path / "runs", study, jobs)
    assert {step.action for step in again.next_steps(jobs)} == {"skip"}
    older = json.loads((folder.path / folder.entries[jobs[0].key]["run"] / "run.json").read_text())[
        "config"
    ]
    del older["rollout"]["retries"]  # a setting that the version of the run did not have
    RunFolder(folder.path / folder.entries[jobs[0].key]["run"]).update(config=older)
    assert {step.action for step in again.next_steps(jobs)} == {"skip"}
    first, of_it, *others = jobs
    assert of_it.parent == first.key
    evaluation = RunFolder(folder.path / folder.entries[of_it.key]["run"])
    evaluation.update(parent={"run": folder.entries[first.key]["run"], "step": 3})
    assert {step.action for step in again.next_steps(jobs)} == {"skip"}
    evaluation.update(parent={"run": "of-an-earlier-training", "step": 3})
    assert [step.action for step in again.next_steps(jobs)] == [
        "skip",
        "run",
        *["skip"] * len(others),
    ]
    assert [step.action for step in again.next_steps([of_it])] == ["run"]
    RunFolder(folder.path / folder.entries[first.key]["run"]).update(agent_source="another")
    assert [step.action for step in again.next_steps(jobs)] == [
        "run",
        "run",
        "run",
        *["skip"] * len(others[1:]),
    ]
    trained = RunFolder(folder.path / folder.entries[first.key]["run"])
    trained.update(config={**older, "rollout": {**older["rollout"], "runners": 7}})
    assert again.next_steps(jobs)[0].why == f"{trained.id} has rollout.runners=7"
    trained.update(config={**older, "seed": 5})
    assert again.next_steps(jobs)[0].why == "not yet run"


def test_what_runs_of_a_slot_share_sees_the_gpus_of_this_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA keeps what it saw first: a fork of a process that saw all GPUs takes the first, whatever its run has."""
    from harness.contracts.trainers import Trainer

    asked = []

    class Holds(Trainer):
        def standby(self, config: Config, environment: Mapping[str, str]) -> None:
            asked.append(environment["CUDA_VISIBLE_DEVICES"])

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr("harness_study.execute.make_trainer", lambda config: Holds())
    monkeypatch.setattr("harness_study.execute.START_GAP_S", 0.0)
    text = "matrix: {agent: [reference_sql, langgraph_sql], seed: [0, 1]}\n"
    _, _, _, run = recording(tmp_path, text, [("0",), ("1",), ("1",)])
    assert [one.state for one in run.execute()] == ["finished"] * 4
    assert asked[:3] == ["0", "1", "1"] and asked[3] in ("0", "1")


RECORD = Path(__file__).resolve().parents[2] / "results" / "cpu" / "seed0" / "run.json"
COMMAND = """
import json, os, pathlib, sys, time
import yaml
arguments, study = sys.argv[1:], json.loads(os.environ["HARNESS_STUDY"])
folder = pathlib.Path(arguments[arguments.index("--runs-dir") + 1]) / f"{time.time_ns()}-{study['job']}"
folder.mkdir()
config = {}
if arguments[0] == "train":
    config = yaml.safe_load(pathlib.Path(arguments[2]).read_text())
else:
    config = json.loads((pathlib.Path(arguments[1]) / "run.json").read_text())["config"] | {"agent": arguments[3]}
    if "--split" in arguments:
        split = arguments[arguments.index("--split") + 1]
        config["task"] |= {"val_split": split, "val_limit": None}
time.sleep(0.3)
record = json.loads(pathlib.Path(RECORD).read_text()) | {"id": folder.name, "kind": arguments[0], "result": None}
record |= {"agent": config["agent"], "agent_match": config["agent_match"], "seed": 0, "commit": None}
(folder / "run.json").write_text(json.dumps(record | {"config": config, "study": study, "arguments": arguments}))
"""


def test_runs_count_as_of_the_same_code_only_where_nothing_that_decides_them_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.training import provenance as record
    from harness_study.state import same_code

    def git(*arguments: str) -> None:
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(
            ["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True
        )

    code, docs = tmp_path / "harness" / "core.py", tmp_path / "docs.md"
    code.parent.mkdir()
    for file in (code, docs):
        file.write_text("one")
    git("init")
    git("add", ".")
    git("commit", "-m", "one")
    monkeypatch.setattr(record, "_ROOT", tmp_path)

    def same(commit: Any) -> bool:
        return same_code({"commit": commit}, "reference_sql")  # type: ignore[typeddict-item]

    clean = record.commit()
    assert clean is not None and not clean["dirty"] and same(clean) and same(None)
    docs.write_text("other")
    documented = record.commit()
    assert same(clean) and documented is not None and documented["dirty"] and same(documented)
    code.write_text("tried")
    tried = record.commit()
    assert tried is not None and same(tried) and not same(clean) and not same(documented)
    code.write_text("tried again")
    assert not same(tried) and same(
        {"hash": tried["hash"], "dirty": True}
    )  # of an older one nobody knows
    git("commit", "-am", "two")
    assert not same(clean) and not same(tried) and not same({"hash": "0" * 40, "dirty": False})
    code.write_text("one")
    assert same(clean)


def test_slots_share_cores_equally_and_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.errors import UserError
    from harness_study import slots

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(10)))
    monkeypatch.setattr(
        slots, "_place", lambda core: (0, core % 5, core)
    )  # cores 0 and 5 are threads of one
    monkeypatch.setattr(slots, "_QUOTA", Path("/nowhere"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-7,5")
    made = slots.make_slots(4)
    assert [sorted(slot.cores) for slot in made] == [[0, 5], [1, 6], [2, 7], [3, 8]]
    assert [slot.gpus for slot in made] == [("2",), ("GPU-7",), ("5",), ("2",)]
    assert [slot.gpus for slot in slots.make_slots(2, 2)] == [("2", "GPU-7"), ("5", "2")]
    assert slots.make_slots(1)[0].gpus is None and len(slots.make_slots(1)[0].cores) == 10
    with pytest.raises(UserError, match=r"--jobs 11: every run needs a core.*Give 1 to 10"):
        slots.make_slots(11)
    quota = Path(os.devnull)
    monkeypatch.setattr(slots, "_QUOTA", quota)
    assert slots.usable_cores() == 10


def test_runs_that_share_a_gpu_must_be_told_how_much_memory_to_take(
    here: Harness, study_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    plan = ("study", str(study_file), "--dry-run", "--jobs", "2", "--set")
    refused = here(*plan, "device=cuda")
    assert refused.returncode == 2 and "2 runs would share a GPU" in refused.stderr
    option = refused.stderr.rsplit("--set ", 1)[1].strip()
    assert option.endswith("kv_cache_memory_bytes=8000000000")
    for settings in (["device=cuda", "--set", option], ["device=cpu"]):
        done = here(*plan, *settings)
        assert done.returncode == 0, done.stderr


def test_a_container_s_quota_bounds_the_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from harness_study import slots

    (tmp_path / "cpu.max").write_text("400000 100000\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr(slots, "_QUOTA", tmp_path / "cpu.max")
    made = slots.make_slots(2)
    assert slots.usable_cores() == 4 and [len(slot.cores) for slot in made] == [2, 2]
    assert not made[0].cores & made[1].cores


def test_time_left_knows_how_many_run_at_once() -> None:
    from harness_study.timing import makespan_s

    assert (
        makespan_s([3, 3, 3, 3], 2) == 6
        and makespan_s([5, 1, 1, 1], 2) == 5
        and makespan_s([], 3) == 0
    )


@pytest.mark.parametrize(
    ("override", "advice"),
    [
        ("agent=crewai_sql", "varies 'agent'. Choose arms with --only"),
        ("seed=5", "varies 'seed'. Choose seeds with --seeds"),
        ("train.credit=role", "varies 'train.credit'"),
        ("train={credit: role}", "varies 'train.credit'"),
    ],
)
def test_a_key_that_the_study_varies_is_not_set_for_all_arms(override: str, advice: str) -> None:
    study = Study.model_validate(
        {
            "name": "s",
            "matrix": {"agent": ["reference_sql", "langgraph_sql"], "seed": [0]},
            "arms": {"plain": {}, "by turn": {"train.credit": "turn"}},
        }
    )
    with pytest.raises(ConfigError, match=re.escape(advice)):
        jobs_of(study, [override])
    assert len(jobs_of(study, ["train.steps=2"])) == 4


def test_labels_of_seeds_and_long_labels_of_arms_give_valid_jobs() -> None:
    study = Study.model_validate(
        {
            "name": "s",
            "matrix": {"seed": {"first": 3, "second": 4}},
            "arms": {"n" * 300: {"max_turns": 1}, "n" * 301: {"max_turns": 2}, "ä" * 300: {}},
        }
    )
    jobs = jobs_of(study)
    assert {job.seed for job in jobs} == {3, 4} and len({job.key for job in jobs}) == 6
    assert max(len(job.key.encode()) for job in jobs) < 200


def test_only_has_no_seeds() -> None:
    study = Study.model_validate({"name": "s", "matrix": {"seed": [0, 1]}})
    with pytest.raises(ConfigError, match="choose seeds with --seeds 0"):
        jobs_of(study, only=["seed=0"])
    with pytest.raises(ConfigError, match="no axis 'agent'. Axes: none"):
        jobs_of(study, only=["agent=x"])


def test_what_only_some_arms_set_may_be_given_for_one_of_them() -> None:
    study = Study.model_validate(
        {
            "name": "s",
            "arms": {
                "a": {"train": {"credit": "turn"}},
                "b": {"roles.write_query": {"endpoint": "http://127.0.0.1:9/v1", "model": "m"}},
            },
        }
    )
    # Another option of a section that an arm sets is not varied.
    assert len(jobs_of(study, ["train.keep_checkpoints=0"])) == 2
    with pytest.raises(ConfigError, match=r"varies 'roles\.write_query\.model'"):
        jobs_of(study, ["roles.write_query.model=x"])
    (job,) = jobs_of(study, ["roles.write_query.model=x"], ["arm=b"])
    assert job.config.roles["write_query"].model == "x"


def test_a_key_that_presets_set_differently_is_varied() -> None:
    study = Study.model_validate({"name": "s", "matrix": {"preset": ["cpu", "pocket-probe"]}})
    with pytest.raises(ConfigError, match=r"varies 'policy'|varies 'policy\.path'"):
        jobs_of(study, ["policy.path=pocket-sql"])
