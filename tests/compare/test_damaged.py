"""Damaged records: one line that names the file, and one bad run spoils no listing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from episode_rows import episode_of
from harness.compare.comparison import compare
from harness.compare.costs import tokens_of
from harness.compare.selection import select
from harness.config import load_config
from harness.errors import ConfigError, UserError
from harness.runs.folder import RunFolder
from harness.runs.reading import find_all, read_run
from harness_report.page import write_report
from harness_study.plan import jobs_of, read_study
from harness_study.state import StudyFolder
from harness_verl.trainer import VerlTrainer

from .synthetic import write_run

Command = Callable[..., subprocess.CompletedProcess[str]]
INCOMPLETE = json.dumps({"schema_version": 1, "id": "x", "status": "finished"}).encode()
DEEP = b'{"a":' * 200_000 + b"1" + b"}" * 200_000
DEEPER_THAN_READ = b'{"schema_version": 1, "config": ' + b'{"a":' * 300 + b"1" + b"}" * 301
DAMAGED = b'{"schema_version": 1, "id"'
RECORDS = [
    DEEP,
    DEEPER_THAN_READ,
    DAMAGED,
    b"",
    b"[1]",
    b"null",
    b'"x"',
    b"{}",
    INCOMPLETE,
    b"\xff\xfe\x00\x93",
]
STUDIES = [
    DEEP,
    b"{bad",
    b"{}",
    b"[]",
    b'{"name": "s", "jobs": [5]}',
    b'{"name": "s", "jobs": [{"key": "a"}]}',
    b"\xff\xfe",
]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("one"), val_limit=4, steps=2).path


@pytest.fixture
def pair(good: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A folder of runs with a whole and a damaged one: the folder and the damaged run."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / good.name).symlink_to(good)
    bad = RunFolder.create(tmp_path / "runs", "bad").path
    return tmp_path / "runs", bad


@pytest.mark.parametrize("content", RECORDS)
def test_a_damaged_record_is_left_out_of_lists_with_a_remark(
    pair: tuple[Path, Path], content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    root, bad = pair
    (bad / "run.json").write_bytes(content)
    for find in (find_all, lambda root: select([root]).runs):
        assert len(find(root)) == 1
        remark = capsys.readouterr().err
        assert remark.count("\n") == 1 and str(bad / "run.json") in remark
    with pytest.raises(UserError, match=r"run\.json") as caught:
        read_run(bad)
    assert "\n" not in str(caught.value)


def test_commands_say_in_one_line_which_record_is_damaged(
    pair: tuple[Path, Path], command: Command
) -> None:
    root, bad = pair
    (bad / "run.json").write_bytes(DAMAGED)
    done = command("runs", "list", "--runs-dir", root, "--json")
    assert (
        done.returncode == 0 and len(json.loads(done.stdout)) == 1 and done.stderr.count("\n") == 1
    )
    for arguments in (("runs", "show", bad), ("compare", bad), ("report", bad)):
        done = command(*arguments)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1) and str(
            bad / "run.json"
        ) in done.stderr, (
            arguments,
            done.stderr,
        )


@pytest.mark.parametrize(
    ("variables", "limit"),
    [
        ({"LC_ALL": "C", "PYTHONUTF8": "0"}, ""),
        ({"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, ""),
        ({}, "ulimit -v 400000"),
    ],
)
def test_a_process_that_libraries_would_crash_in_is_refused(
    good: Path, tmp_path: Path, variables: dict[str, str], limit: str
) -> None:
    run = tmp_path / "café"
    run.symlink_to(good)
    call = f"{limit or ':'}; exec {sys.executable} -m harness compare {run}"
    done = subprocess.run(
        ["bash", "-c", call], env={**os.environ, **variables}, capture_output=True, timeout=60
    )
    output = done.stderr.decode()
    assert (done.returncode, output.count("\n")) == (2, 1), output
    assert ("ulimit -v unlimited" if limit else "set LC_ALL=C.UTF-8") in output


@pytest.mark.slow
def test_commands_that_import_no_library_of_tables_take_little_memory(good: Path) -> None:
    for command in (f"runs list --runs-dir {good.parent}", "config show cpu", "plugins"):
        call = f"ulimit -v 400000; exec {sys.executable} -m harness {command}"
        done = subprocess.run(["bash", "-c", call], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "") and done.stdout, (command, done.stderr)


@pytest.mark.parametrize("kind", ["episodes", "steps", "transitions"])
@pytest.mark.parametrize("junk", [b"", b"junk", b"PAR1 not quite PAR1"])
def test_a_damaged_table_is_named_and_its_rows_are_read_once_it_is_gone(
    tmp_path: Path, kind: str, junk: bytes, command: Command
) -> None:
    run = write_run(tmp_path, val_limit=4, steps=2).path
    whole = len(getattr(read_run(run), kind))
    (run / f"{kind}.parquet").write_bytes(junk)
    with pytest.raises(UserError, match=f"{kind}.parquet is damaged"):
        getattr(read_run(run), kind)
    done = command("runs", "show", run)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and f"{kind}.parquet" in done.stderr
    (run / f"{kind}.parquet").unlink()
    assert len(getattr(read_run(run), kind)) == whole > 0


def test_a_table_of_something_else_is_named(tmp_path: Path) -> None:
    import polars as pl

    run = write_run(tmp_path, val_limit=4, steps=2).path
    pl.DataFrame({"a": [1]}).write_parquet(run / "episodes.parquet")
    with pytest.raises(
        UserError,
        match=r"episodes\.parquet has no column answer, cluster, detail, difficulty and 16 more",
    ):
        read_run(run).validation()


@pytest.mark.parametrize("column", ["task_id", "outcome", "rewrites", "trained_tokens", "question"])
def test_a_table_without_a_column_is_named(column: str, tmp_path: Path) -> None:
    import polars as pl

    run = write_run(tmp_path, val_limit=4, steps=2).path
    table = run / "episodes.parquet"
    pl.read_parquet(table).drop(column).write_parquet(table)
    with pytest.raises(UserError, match=rf"episodes\.parquet has no column {column}\. Restore"):
        compare(select([run]))


def test_rewards_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    import polars as pl

    run = write_run(tmp_path, val_limit=4, steps=2).path
    table = run / "episodes.parquet"
    texts = pl.read_parquet(table).with_columns(pl.col("reward").cast(pl.String))
    texts.write_parquet(table)
    with pytest.raises(
        UserError, match=r"the column reward must hold numbers, not String\. Restore"
    ):
        compare(select([run]))


@pytest.mark.parametrize("reward", [7.0, -0.5])
def test_a_reward_outside_of_the_run_s_range_is_refused(reward: float, tmp_path: Path) -> None:
    import polars as pl

    run = write_run(tmp_path, val_limit=4, steps=2).path
    table = run / "episodes.parquet"
    rows = pl.read_parquet(table)
    first = pl.int_range(pl.len()) == 0
    changed = rows.with_columns(reward=pl.when(first).then(reward).otherwise("reward"))
    changed.write_parquet(table)
    with pytest.raises(
        UserError, match=rf"a reward is {reward:g}, and the run's rewards are 0 to 1"
    ):
        compare(select([run]))


def test_a_study_s_damaged_job_is_named_by_its_place(tmp_path: Path) -> None:
    job = {"key": "a", "arm": "a", "seed": 0, "run": None}
    state = {"schema_version": 1, "name": "s", "launches": [], "jobs": [job, job | {"seed": "0"}]}
    (tmp_path / "study.json").write_text(json.dumps(state))
    with pytest.raises(UserError, match=r"its jobs\.1\.seed is missing or of the wrong kind"):
        select([tmp_path])


@pytest.mark.parametrize("line", [b"junk", b"5", b"\xff\xfe", DEEP])
def test_a_damaged_row_is_named_by_its_line(tmp_path: Path, line: bytes) -> None:
    folder = RunFolder.create(tmp_path, "x")
    whole = json.dumps(episode_of(1, 1.0)).encode()
    (folder.logs / "episodes-1.jsonl").write_bytes(whole + b"\n" + line + b"\n")
    with pytest.raises(UserError, match=r"line 2 of .*episodes-1\.jsonl"):
        list(folder.rows("episodes"))
    with pytest.raises(UserError, match=r"line 2 of .*episodes-1\.jsonl"):
        folder.drop_after(1)


def test_a_damaged_configuration_and_marker_are_named(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    config = load_config("cpu", None, ["train.learning_rate=1e-7"], agent="reference_sql")
    folder.write_config(config)
    assert folder.config() == config
    for content in (b"a: [", b"- 1", b"\xff\xfe\x00"):
        (folder.path / "config.yaml").write_bytes(content)
        with pytest.raises(ConfigError, match=r"config\.yaml"):
            folder.config()
    folder.checkpoints.mkdir()
    (folder.checkpoints / "latest_checkpointed_iteration.txt").write_text("")
    with pytest.raises(UserError, match=r"latest_checkpointed_iteration\.txt holds no step"):
        VerlTrainer().checkpoints(folder)


@pytest.mark.parametrize("content", STUDIES)
def test_a_damaged_study_is_one_line(
    pair: tuple[Path, Path], content: bytes, command: Command
) -> None:
    root, _ = pair
    (root / "study.json").write_bytes(content)
    done = command("compare", root)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and str(
        root / "study.json"
    ) in done.stderr


def test_a_study_leaves_strangers_out_and_does_not_repeat_a_run_unasked(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], command: Command
) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(
        "{name: small, question: q, baseline: a, preset: cpu, set: {agent: reference_sql, train.steps: 1}, "
        "arms: {a: {max_turns: 1}}, matrix: {seed: [0]}}"
    )
    described = read_study(file)
    jobs = jobs_of(described, [], [])
    folder = StudyFolder(tmp_path / "runs" / "small", described, jobs)
    bad = RunFolder.create(folder.path, "bad").path
    (bad / "run.json").write_bytes(DAMAGED)
    (step,) = folder.next_steps(jobs)
    assert step.action == "run" and bad.name in step.earlier
    assert "left out" in capfd.readouterr().err
    folder.set(jobs[0], "failed", bad)
    for content in (DAMAGED, INCOMPLETE):
        (bad / "run.json").write_bytes(content)
        done = command("study", file, "--dry-run", "--runs-dir", tmp_path / "runs")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1) and str(
            bad / "run.json"
        ) in done.stderr
    for content in STUDIES:
        (folder.path / "study.json").write_bytes(content)
        done = command("study", file, "--dry-run", "--runs-dir", tmp_path / "runs")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "study.json" in done.stderr


def test_a_validation_that_lost_questions_in_every_step_is_noticed(
    write_run: Callable[..., RunFolder],
) -> None:
    whole, cut = write_run("reference_sql"), write_run("langgraph_sql")
    file = cut.path / "episodes.parquet"
    episodes = pl.read_parquet(file)
    validated = sorted(episodes.filter(phase="val")["task_id"].unique())
    kept = validated[: len(validated) // 2]
    in_training_or_kept = (pl.col("phase") == "train") | pl.col("task_id").is_in(kept)
    episodes.filter(in_training_or_kept).write_parquet(file)
    remarks = compare(select([whole.path, cut.path]))["remarks"]
    assert f"holds {len(kept)} of {len(validated)} questions." in " ".join(remarks)


def test_a_name_that_is_a_pattern_is_read_as_a_name(
    write_run: Callable[..., RunFolder], tmp_path: Path
) -> None:
    run, other = write_run("reference_sql"), write_run("langgraph_sql")
    marked, matched = tmp_path / "run[1]", tmp_path / "run1"
    shutil.copytree(run.path, marked)
    shutil.copytree(other.path, matched)
    assert read_run(marked).episodes.equals(read_run(run.path).episodes)
    shutil.rmtree(matched)
    assert len(read_run(marked).episodes)
    assert tokens_of(RunFolder(marked)) == tokens_of(RunFolder(run.path))


def test_columns_of_other_types_are_cast_or_refused(write_run: Callable[..., RunFolder]) -> None:
    whole, changed = write_run("reference_sql"), write_run("langgraph_sql")
    file = changed.path / "episodes.parquet"
    episodes = pl.read_parquet(file)
    expected = json.dumps(compare(select([whole.path, changed.path])), default=str)
    episodes.with_columns(
        pl.col("step").cast(pl.Int32),
        pl.col("reward").cast(pl.Float32),
        pl.col("cluster", "difficulty").cast(pl.Categorical),
    ).write_parquet(file)
    assert json.dumps(compare(select([whole.path, changed.path])), default=str) == expected
    for column, wrong in {
        "step": pl.lit(None, pl.Int64),
        "prompt_tokens": pl.lit("x"),
        "cluster": pl.lit(["x"]),
    }.items():
        episodes.with_columns(wrong.alias(column)).write_parquet(file)
        with pytest.raises(UserError, match=column):
            compare(select([whole.path, changed.path]))


def test_a_row_without_a_value_that_groups_it_is_named(
    write_run: Callable[..., RunFolder],
) -> None:
    whole, changed = write_run("reference_sql"), write_run("langgraph_sql")
    file = changed.path / "episodes.parquet"
    episodes = pl.read_parquet(file)
    for column in ("cluster", "task_id", "phase", "outcome", "prompt_tokens"):
        first_row = pl.int_range(pl.len()) == 0
        episodes.with_columns(pl.when(~first_row).then(column).alias(column)).write_parquet(file)
        named = rf"episodes\.parquet: the column {column} has no value in 1 of \S+ rows\. Restore"
        with pytest.raises(UserError, match=named):
            compare(select([whole.path, changed.path]))


@pytest.mark.parametrize("column", ["step_s", "checkpoint_s"])
def test_steps_without_time_have_no_shares(
    column: str, write_run: Callable[..., RunFolder], command: Command
) -> None:
    """Steps of 0 s, and steps that only saved a checkpoint."""
    run = write_run("reference_sql")
    file = run.path / "steps.parquet"
    steps = pl.read_parquet(file)
    seconds = pl.lit(0.0) if column == "step_s" else pl.col("step_s")
    steps.with_columns(seconds.alias(column)).write_parquet(file)

    done = command("compare", run.path, "--format", "json")

    assert done.returncode == 0, done.stderr
    (arm,) = json.loads(done.stdout)["arms"]
    assert (arm["step_s"], arm["shares"]) == (0.0, {})
    for arguments in (("compare", run.path), ("runs", "show", run.path), ("report", run.path)):
        done = command(*arguments)
        assert done.returncode == 0, done.stderr


WRONG_CELLS: dict[str, Any] = {
    "List": [1],
    "Struct": {"a": 1},
    "Binary": b"\xff",
    "Date": date(2026, 1, 1),
    "Duration": timedelta(1),
}


@pytest.mark.parametrize(
    ("kind", "column", "held"),
    [
        ("episodes", "started_s", "numbers"),
        ("episodes", "tool_calls", "text"),
        ("episodes", "executed", "true or false"),
        ("episodes", "cut", "lists of texts"),
        ("steps", "update_s", "numbers"),
        ("transitions", "trained", "true or false"),
        ("transitions", "latency_s", "numbers"),
        ("transitions", "response_ids", "lists of numbers"),
    ],
)
def test_a_column_of_another_type_is_named_with_both_types(
    write_run: Callable[..., RunFolder], tmp_path: Path, kind: str, column: str, held: str
) -> None:
    run = write_run("reference_sql").path
    file = run / f"{kind}.parquet"
    table = pl.read_parquet(file)
    for found, cell in WRONG_CELLS.items():
        if found == "List" and held.startswith("lists"):
            continue
        wrong = pl.Series(column, [cell] * len(table))
        table.with_columns(wrong).write_parquet(file)
        message = rf"{kind}\.parquet: the column {column} must hold {held}, not {found}.*\. Restore"
        for read in (
            lambda: compare(select([run])),
            lambda: write_report(select([run]), tmp_path / "report.html"),
        ):
            with pytest.raises(UserError, match=message) as caught:
                read()
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("episodes", "session"),
        ("episodes", "rewrites"),
        ("steps", "update_s"),
        ("steps", "rollout/rollouts"),
        ("transitions", "response_ids"),
    ],
)
def test_a_column_without_any_value_keeps_its_type(
    write_run: Callable[..., RunFolder], tmp_path: Path, kind: str, column: str
) -> None:
    whole, changed = write_run("reference_sql").path, write_run("langgraph_sql").path
    file = changed / f"{kind}.parquet"
    pl.read_parquet(file).with_columns(pl.lit(None).alias(column)).write_parquet(file)
    compare(select([whole, changed]))
    write_report(select([whole, changed]), tmp_path / "report.html")


def test_figures_of_a_trainer_keep_their_type_whatever_their_name(
    write_run: Callable[..., RunFolder],
) -> None:
    run = write_run("reference_sql")
    file = run.path / "steps.parquet"
    figures = {"response_tokens": 123.7, "transitions": 1e19, "difficulty": 0.5}
    pl.read_parquet(file).with_columns(**figures).write_parquet(file)
    read = read_run(run.path)
    for name, value in figures.items():
        assert set(read.logged(name).values()) == {value}


def test_an_archive_without_runs_beside_it_says_how_to_unpack(tmp_path: Path) -> None:
    (tmp_path / "runs.tar.xz").touch()
    with pytest.raises(UserError, match=r"in an archive: mkdir unpacked && tar -xf \S+runs.tar.xz"):
        select([tmp_path])
