"""Task set `files`: what users have is read as it stands, refused with its line, and never lost or written to."""

from __future__ import annotations

import csv
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from harness.cli import app as harness
from harness.config import Config, load_config
from harness.errors import ConfigError, TaskSetError, UserError
from harness.mock_model.server import ReceivedRequest
from harness.plugins import environment, make_task_set
from harness.policies import resolve
from harness.rollout.request import RolloutRequest
from harness.runs.folder import RunFolder
from harness.testing.data_contract import TaskSetContract
from harness.testing.fixtures import StartServer
from harness.training.data import load_tasks
from harness.training.record import run_record
from harness_sql.cli import data as data_commands
from harness_sql.sqlite.environment import ANSWER, GOLD_IS, database_of
from harness_sql.sqlite.evaluator import evaluate
from harness_sql.sqlite.sandbox import execute
from harness_sql.tasks.files import FilesTasks, reading

REPO = Path(__file__).resolve().parents[2]
Row = dict[str, Any]


def make_database(path: Path, table: str, *names: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    connection.execute(f"CREATE TABLE {table} (name TEXT)")
    connection.executemany(f"INSERT INTO {table} VALUES (?)", [(name,) for name in names])
    connection.commit()
    connection.close()
    return path


def row(number: int, db: str = "farm", **more: Any) -> Row:
    table = {"farm": "cow", "zoo": "animal", "lake": "fish"}[db]
    return {
        "question": f"Which {table} is number {number}?",
        "query": f"SELECT name FROM {table} LIMIT {number}",
        "database": db,
        **more,
    }


def lines(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text(
        "".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in rows),
        encoding="utf-8",
    )
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three databases."""
    make_database(tmp_path / "farm.sqlite", "cow", "Elsa", "Emma")
    make_database(tmp_path / "zoo.db", "animal", "Leo")
    make_database(tmp_path / "lake" / "lake.sqlite", "fish", "Wanda")
    return tmp_path


def message_of(caught: pytest.ExceptionInfo[Any]) -> str:
    assert "\n" not in str(caught.value)
    return str(caught.value)


def checked(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(data_commands.app, ["check", *map(str, arguments)])
    return done.exit_code, done.output


class TestContract(TaskSetContract):
    task_set = "files"

    @pytest.fixture(scope="class")
    @classmethod
    def options(cls, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
        folder = tmp_path_factory.mktemp("contract")
        make_database(folder / "farm.sqlite", "cow", "Elsa", "Emma")
        make_database(folder / "zoo.db", "animal", "Leo")
        splits = ("train", "validation", "test")
        rows = [
            row(n, db, split=split, evidence=f"it is {split}")
            for db in ("farm", "zoo")
            for n in (1, 2)
            for split in splits
        ]
        rows.append(
            {
                "question": "Who is it?",
                "answer": "Elsa, who is a cow",
                "database": "farm",
                "split": "train",
            }
        )
        return {"path": str(lines(folder / "questions.jsonl", rows))}


def test_every_format_gives_the_same_tasks_and_the_same_identity(folder: Path) -> None:
    rows = [
        row(n, db, difficulty="easy", hint='say, "please"\nnow')
        for db in ("farm", "zoo", "lake")
        for n in range(1, 5)
    ]
    lines(folder / "a.jsonl", ["", *rows[:3], " ", *rows[3:]])
    (folder / "b.json").write_text("\ufeff" + json.dumps(rows, indent=2), encoding="utf-8")
    for name, separator in (("c.csv", ","), ("d.tsv", "\t"), ("f.csv", ";")):
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter=separator)
            writer.writerows([list(rows[0]), *(list(one.values()) for one in rows)])
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "e.parquet")
    made = [
        FilesTasks(path=folder / name)
        for name in ("a.jsonl", "b.json", "c.csv", "d.tsv", "e.parquet", "f.csv")
    ]
    first = made[0].load("all")
    assert [task.gold for task in first] == [one["query"] for one in rows]
    assert (
        first[0].question == f'{rows[0]["question"]}\nHint: say, "please"\nnow'
        and first[0].difficulty == "easy"
    )
    assert {task.cluster for task in first} == {"farm", "zoo", "lake"}
    assert all(
        one.load(split) == made[0].load(split) for one in made for split in ("train", "val", "all")
    )
    assert all(one.describe() == made[0].describe() for one in made)
    assert str(folder) not in json.dumps(made[0].describe())
    assert (
        FilesTasks(path=folder / "a.jsonl", evidence=False).load("all")[0].question
        == rows[0]["question"]
    )


def test_a_list_of_objects_names_the_line_of_each(folder: Path) -> None:
    (folder / "a.json").write_text(
        '[\n {"question": "",\n  "query": "SELECT 1", "database": "farm"},\n {"question": 1,'
        ' "query": "SELECT 1", "database": "farm"}\n]'
    )
    bad = FilesTasks(path=folder / "a.json").collection.bad
    assert [one.where for one in bad] == ["line 2", "line 4"]
    (folder / "a.json").write_text('[\n {"question": "a"}\n {"question": "b"}]')
    with pytest.raises(TaskSetError, match=r"a\.json, line 3: not JSON: Expecting ',' or ']'"):
        FilesTasks(path=folder / "a.json").load("all")


def test_a_seed_splits_by_cluster_and_whole(folder: Path) -> None:
    path = lines(
        folder / "a.jsonl", [row(n, db) for db in ("farm", "zoo", "lake") for n in range(1, 6)]
    )
    tasks = FilesTasks(path=path, val_share=0.4)
    train, val = tasks.load("train"), tasks.load("val")
    assert not {task.cluster for task in train} & {task.cluster for task in val}
    assert (len(train), len(val)) == (10, 5) and len(tasks.load("all")) == 15
    seeds = {FilesTasks(path=path, split_seed=seed).load("val")[0].cluster for seed in range(20)}
    assert len(seeds) == 3
    assert "by cluster" in tasks.describe()["splitting"]
    with pytest.raises(
        TaskSetError, match=r"split 'test' is empty: a split by seed makes train and val"
    ):
        tasks.load("test")


def test_one_database_is_split_by_question_and_the_same_gold_stays_together(folder: Path) -> None:
    rows = [row(n) for n in range(1, 11)]
    rows += [{**one, "question": f"Say: {one['question']}"} for one in rows]
    path = lines(folder / "a.jsonl", rows)
    for seed in range(10):
        tasks = FilesTasks(path=path, split_seed=seed)
        train, val = tasks.load("train"), tasks.load("val")
        assert len(val) == 4 and not {task.gold for task in train} & {task.gold for task in val}
    assert "by question, since all share one cluster" in tasks.describe()["splitting"]
    other = FilesTasks(
        path=lines(folder / "b.jsonl", [{**one, "cluster": n % 4} for n, one in enumerate(rows)])
    )
    assert {task.cluster for task in other.load("val")} < {"0", "1", "2", "3"}


def test_files_and_columns_make_splits(folder: Path) -> None:
    train = lines(folder / "a.jsonl", [row(n, id=n, split="test") for n in (1, 2)])
    val = lines(folder / "b.jsonl", [row(n, "zoo", id=n) for n in (1, 2, 3)])
    tasks = FilesTasks(train=train, val=val)
    assert [task.id for task in tasks.load("all")] == [
        "train/1",
        "train/2",
        "val/1",
        "val/2",
        "val/3",
    ]
    assert [task.split for task in tasks.load("train")] == ["train", "train"]
    with pytest.raises(
        TaskSetError, match=r"'test' is empty. Name its file: --set task\.options\.test=FILE"
    ):
        tasks.load("test")
    for names in (("train", "dev"), ("Training", "VALID")):
        path = lines(folder / "c.jsonl", [row(n, split=names[n > 1]) for n in (1, 2, 3)])
        assert [len(FilesTasks(path=path).load(split)) for split in ("train", "val")] == [1, 2]
    path = lines(folder / "d.jsonl", [row(n, split="train") for n in range(1, 6)])
    with pytest.raises(
        TaskSetError, match=r"'val' is empty: its column has train 5.*columns\.split=null"
    ):
        FilesTasks(path=path).load("val")
    assert len(FilesTasks(path=path, columns={"split": None}).load("val")) == 1
    with pytest.raises(ConfigError, match="Give either"):
        FilesTasks(path=path, val=val)


def test_databases_are_found_by_path_and_by_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "q").mkdir()
    for name in ("../farm.sqlite", str(folder / "farm.sqlite"), "../farm"):
        path = lines(folder / "q" / "a.jsonl", [{**row(1), "database": name}])
        (task,) = FilesTasks(path=path).load("all")
        assert (database_of(task), task.cluster) == (str(folder / "farm.sqlite"), "farm")
    path = lines(folder / "q" / "a.jsonl", [row(1), row(1, "zoo"), row(1, "lake")])
    found = [database_of(task) for task in FilesTasks(path=path, databases=folder).load("all")]
    assert found == [str(folder / name) for name in ("farm.sqlite", "zoo.db", "lake/lake.sqlite")]
    monkeypatch.chdir(folder)
    assert [
        database_of(one)
        for one in FilesTasks(path=Path("q/a.jsonl"), databases=Path(".")).load("all")
    ] == found
    bare = lines(
        folder / "b.jsonl", [{key: value for key, value in row(1).items() if key != "database"}]
    )
    (task,) = FilesTasks(path=bare, databases=folder / "farm.sqlite").load("all")
    assert task.cluster == "farm"
    with pytest.raises(TaskSetError, match=r"no column for the database .*databases=FILE"):
        FilesTasks(path=bare).load("all")
    with pytest.raises(TaskSetError, match="no folder or file"):
        FilesTasks(path=bare, databases=folder / "nowhere")


def test_databases_of_one_name_are_told_apart(folder: Path) -> None:
    for place in ("north", "south"):
        make_database(folder / place / "data.sqlite", "cow", place)
    rows = [{**row(1), "database": f"{place}/data.sqlite"} for place in ("north", "south")]
    tasks = FilesTasks(path=lines(folder / "a.jsonl", rows)).load("all")
    assert [task.cluster for task in tasks] == ["north/data.sqlite", "south/data.sqlite"]
    make_database(folder / "farm.db", "cow", "other")
    with pytest.raises(
        TaskSetError, match=r"line 1: database 'farm' may be .*farm\.sqlite or .*farm\.db\. Write"
    ):
        FilesTasks(path=lines(folder / "b.jsonl", [row(1)])).load("all")


def test_columns_of_other_names(folder: Path) -> None:
    path = lines(folder / "a.jsonl", [{"Text": "Which?", "Reference": "SELECT 1", "DB_ID": "farm"}])
    with pytest.raises(TaskSetError) as caught:
        FilesTasks(path=path).load("all")
    assert "no column for the question (usual names: question, " in message_of(caught)
    assert (
        "Its columns: Text, Reference, DB_ID. Name it: --set task.options.columns.question=COLUMN"
        in message_of(caught)
    )
    (task,) = FilesTasks(path=path, columns={"question": "Text", "gold": "Reference"}).load("all")
    assert (task.question, task.gold) == ("Which?", "SELECT 1")
    with pytest.raises(
        TaskSetError, match=r"has no column 'text' \(task\.options\.columns\.question\)"
    ):
        FilesTasks(path=path, columns={"question": "text"}).load("all")
    with pytest.raises(ConfigError, match="'golds' is no field; did you mean 'gold'"):
        FilesTasks(path=path, columns={"golds": "Text"})
    both = lines(folder / "b.jsonl", [row(1, sql={"select": 1})])
    with pytest.raises(
        TaskSetError,
        match=r"'query' and 'sql' may each be the gold\. Say which: .*columns\.gold=query",
    ):
        FilesTasks(path=both).load("all")
    assert FilesTasks(path=both, columns={"gold": "query"}).load("all")


BAD: list[tuple[Any, str]] = [
    ("{", "not JSON: Expecting property name"),
    ("[1]", "a list, not an object"),
    ("[" * 100_000, "not JSON that can be read"),
    ({**row(1), "question": " "}, "the question is empty"),
    ({**row(1), "question": 7}, "'question' is 7, not text"),
    ({**row(1), "query": ["SELECT 1"]}, """'query' is ["SELECT 1"], not text"""),
    ({**row(1), "query": ""}, "neither a gold query nor an answer"),
    ({**row(1), "query": "SELECT '\ud800'"}, "'query' holds characters that no text has"),
    (
        {**row(1), "question": f"{row(1)['query']}?"},
        "the gold query is in the text that the agent is shown",
    ),
    (
        {**row(1), "evidence": f"as in {row(1)['query']}"},
        "the gold query is in the text that the agent is shown",
    ),
    ({**row(1), "database": None}, "no database is named"),
    ({**row(1), "database": "barn"}, "no database 'barn' in "),
    ({**row(1), "database": "x" * 5000}, "no database 'xxx"),
    ({**row(1), "database": "text"}, "database 'text': not a SQLite database"),
    ({**row(1), "database": "half"}, "database 'half': cut off"),
    ({**row(1), "database": "bare"}, "database 'bare' has no tables in it"),
    ({**row(1), "id": "first"}, "the id 'first' is that of line 1, too"),
    ({**row(1), "id": 1.5, "difficulty": 2.0}, "'id' is 1.5, not a text or whole number"),
    ({**row(1), "split": "tarin"}, "'split' is 'tarin', no split (train, training, val"),
    ({**row(1), "split": ""}, "'split' is '', no split"),
]


@pytest.mark.parametrize(("bad", "why"), BAD, ids=range(len(BAD)))
def test_a_bad_line_is_refused_with_its_number_and_left_out_only_when_asked(
    bad: Any, why: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "text.sqlite").write_text("no database " * 20)
    (folder / "half.sqlite").write_bytes((folder / "farm.sqlite").read_bytes()[:5000])
    bare = sqlite3.connect(folder / "bare.sqlite")
    bare.execute("PRAGMA user_version = 1")
    bare.execute("VACUUM")
    bare.close()
    good = [row(1, id="first", split="train"), row(2, id="second", split="val")]
    if isinstance(bad, dict):
        bad = {"split": "train", **bad}
    whole = FilesTasks(path=lines(folder / "good.jsonl", good))
    path = lines(folder / "a.jsonl", [good[0], bad, good[1]])
    with pytest.raises(TaskSetError) as caught:
        FilesTasks(path=path).load("val")
    assert message_of(caught).startswith(
        f"{path}, line 2: {why}"
    ) and "skip_bad=true" in message_of(caught)
    with pytest.raises(TaskSetError):
        FilesTasks(path=path).describe()
    lenient = FilesTasks(path=path, skip_bad=True)
    assert lenient.load("all") == whole.load("all")
    assert f"1 bad lines, {path} line 2" in caplog.text
    assert (
        lenient.describe()["left_out"] == ["path line 2"] and lenient.describe() != whole.describe()
    )
    status, output = checked(path)
    assert (
        status == 1 and f"broken: {path}, line 2: {why}" in output and output.endswith("NOT ok\n")
    )
    status, output = checked(path, "--set", "task.options.skip_bad=true")
    assert (
        status == 0
        and f"left out: {path}, line 2: {why}" in output
        and "2 good questions" in output
    )


FATAL: list[tuple[str, bytes, str]] = [
    ("a.jsonl", b"", "has no questions in it"),
    ("a.txt", b"{}", "ends in '.txt', which says no format. Give JSON lines"),
    (
        "a.csv",
        b'question,query,database\nHow,"SELECT 1,farm\nWho,SELECT 2,farm\n',
        "line 2: not CSV: unexpected end",
    ),
    ("a.csv", b"question,question\n", "line 1: two columns have one name"),
    (
        "a.csv",
        b"question,query,database\nHow?,SELECT 1,farm\n\xe9,SELECT 1,farm\n",
        "line 3: not UTF-8",
    ),
    ("a.parquet", b"PAR1 and no more", "is no whole Parquet file"),
    ("a.json", b'[{"question": "a"}', "line 1: not JSON"),
    (
        "a.jsonl",
        b"\xff\xfe{\x00\n{",
        "line 1: not UTF-8 at its byte 1. Save the file as UTF-8. No other line",
    ),
]


@pytest.mark.parametrize(("name", "content", "why"), FATAL, ids=range(len(FATAL)))
def test_a_file_that_is_damaged_as_a_whole_is_one_line(
    name: str, content: bytes, why: str, folder: Path
) -> None:
    (folder / name).write_bytes(content)
    for skip_bad in (False, True):  # nobody knows what would be left out
        with pytest.raises(TaskSetError) as caught:
            FilesTasks(path=folder / name, skip_bad=skip_bad).load("all")
        assert str(folder / name) in message_of(caught) and why in message_of(caught)


def test_a_parquet_date_that_python_lacks_is_one_line(folder: Path) -> None:
    ids = pyarrow.array([2**62], pyarrow.timestamp("us"))
    rows = pyarrow.table(
        {"question": ["How?"], "query": ["SELECT 1"], "database": ["farm"], "id": ids}
    )
    pyarrow.parquet.write_table(rows, folder / "a.parquet")
    with pytest.raises(TaskSetError, match="is no whole Parquet file: date value out of range"):
        FilesTasks(path=folder / "a.parquet").load("all")


def test_a_csv_line_of_too_few_cells_is_refused_where_it_begins(folder: Path) -> None:
    (folder / "a.csv").write_text(
        'question,query,database\n"two\nlines",SELECT 1,farm\nHow, many?,SELECT 1,farm\n'
    )
    with pytest.raises(
        TaskSetError,
        match=r"a\.csv, line 4: 4 cells, but 3 columns\. Put text with ',' in it in double",
    ):
        FilesTasks(path=folder / "a.csv").load("all")


def test_a_file_that_is_not_there_is_said(folder: Path) -> None:
    for path, why in (
        (folder / "no.jsonl", "no file .*no.jsonl"),
        (folder / "lake.csv", "cannot read .*Is a directory"),
    ):
        if path.suffix == ".csv":
            path.mkdir()
        with pytest.raises(TaskSetError, match=why):
            FilesTasks(path=path).load("all")
    with pytest.raises(ConfigError, match=r"needs a file of questions: --set task\.options\.path="):
        FilesTasks()


def test_answers_without_a_query_load_and_execution_accuracy_refuses_them(folder: Path) -> None:
    rows = [{"question": "Who?", "answer": ["Elsa", 2], "database": "farm"}, row(1, answer="Elsa")]
    path = lines(folder / "a.jsonl", rows)
    first, second = FilesTasks(path=path).load("all")
    assert (first.gold, first.data[GOLD_IS], first.data[ANSWER]) == (
        '["Elsa", 2]',
        "answer",
        '["Elsa", 2]',
    )
    assert (second.gold, second.data[GOLD_IS], second.data[ANSWER]) == (
        rows[1]["query"],
        "query",
        "Elsa",
    )
    config = Config.model_validate({"task": {"name": "files", "options": {"path": str(path)}}})
    with pytest.raises(TaskSetError) as caught:
        load_tasks(config, make_task_set(config), "all")
    assert re.search(
        r"reward 'execution_accuracy' cannot judge 1 of 2 tasks of files's split 'all', the first being 'farm/\w+': "
        r"it has an answer but no gold query\. Add one, or name a reward that judges answers",
        message_of(caught),
    )
    status, output = checked(path)
    assert (
        status == 1
        and f"cannot judge 1 of 2 questions, the first being {path}, line 1: it has an answer"
        in output
    )


def test_a_training_of_a_bad_file_leaves_no_folder(folder: Path) -> None:
    path = lines(folder / "a.jsonl", [row(1), {**row(2), "database": "barn"}])
    for file in (path, folder / "none.jsonl"):
        options = (
            "--plugin",
            "reference_sql",
            "--set",
            f"task.options.path={file}",
            "--runs-dir",
            str(folder / "runs"),
        )
        done = CliRunner().invoke(harness, ["train", "--task", "files", *options])
        assert isinstance(done.exception, TaskSetError) and str(file) in str(done.exception)
        assert not (folder / "runs").exists()


def test_a_run_goes_on_only_with_the_data_that_it_began_with(folder: Path) -> None:
    path = lines(folder / "a.jsonl", [row(n) for n in range(1, 41)])
    config = load_config(
        "cpu", None, ["task.name=files", f"task.options.path={path}"], agent="reference_sql"
    )
    run = RunFolder.create(folder / "runs", "reference_sql")
    run.write_config(config)
    run.write(
        run_record(config, run, make_task_set(config), [], [], resolve(config.policy.path), "cpu")
    )
    lines(path, [row(n) for n in range(1, 42)])
    done = CliRunner().invoke(harness, ["train", "--resume", str(run.path)])
    assert isinstance(
        done.exception, UserError
    ) and "the data are not those that the run began with" in str(done.exception)
    assert "counts.train" in str(done.exception) or "questions_sha256" in str(done.exception)
    moved = path.rename(folder / "b.jsonl")
    lines(moved, [row(n) for n in range(1, 41)])
    with run.locked():  # all is well but for another process
        done = CliRunner().invoke(
            harness, ["train", "--resume", str(run.path), "--set", f"task.options.path={moved}"]
        )
    assert isinstance(done.exception, UserError) and "still running" in str(done.exception)


@pytest.mark.slow
def test_what_is_only_measured_needs_no_training_split(
    folder: Path, scripted_server: StartServer
) -> None:
    rows = [row(n, split="test") for n in (1, 2)]
    path = lines(folder / "a.jsonl", rows)
    golds = {one["question"]: one["query"] for one in rows}

    def answer(request: ReceivedRequest) -> str:
        question = re.search(r"Question: (.*)", str(request.messages[-1]["content"]))
        return f"```sql\n{golds[question[1]]}\n```" if question else "?"

    server = scripted_server(answer, token_ids=False)
    options = ("--set", f"task.options.path={path}", "--set", "max_turns=1", "--split", "test")
    arguments = (
        "--plugin",
        "reference_sql",
        "--task",
        "files",
        *options,
        "--runs-dir",
        str(folder / "runs"),
        "--json",
    )
    command = [sys.executable, "-m", "harness", "eval", "--endpoint", server.base_url, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"]["accuracy"] == 1.0
    options = ("--set", f"task.options.path={path}", "--json")
    described = json.loads(
        CliRunner().invoke(harness, ["tasks", "--name", "files", *options]).stdout
    )
    assert described == FilesTasks(path=path).describe() and described["counts"] == {"test": 2}


opened: list[tuple[str, Any]] = []


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and opened and isinstance(arguments[0], str):
        writes = arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        if writes and arguments[0].startswith(opened[0][0]):
            opened.append((arguments[0], arguments[1]))
    elif event == "sqlite3.connect" and opened and "mode=ro" not in str(arguments[0]):
        opened.append((str(arguments[0]), "sqlite3"))


@pytest.fixture
def writes(folder: Path) -> Iterator[list[tuple[str, Any]]]:
    """What is opened in the folder to be written, after the first entry."""
    sys.addaudithook(_note)  # stays, and does nothing once the list is empty
    opened.append((str(folder), None))
    yield opened
    opened.clear()


def test_gold_stays_and_files_are_only_read(folder: Path, writes: list[tuple[str, Any]]) -> None:
    kept = opened.copy()
    opened.clear()
    path = lines(
        folder / "a.jsonl",
        [row(n, db, answer="an answer in words") for db in ("farm", "lake") for n in (1, 2)],
    )
    opened.extend(kept)
    before = {
        file: (file.read_bytes(), file.stat().st_mtime_ns)
        for file in folder.rglob("*")
        if file.is_file()
    }
    config = Config.model_validate({"task": {"name": "files", "options": {"path": str(path)}}})
    tasks = make_task_set(config)
    for task in tasks.load("all"):
        request = json.dumps(RolloutRequest.build(task, tasks.context(task), config, "val").dump())
        assert task.gold not in request and "an answer in words" not in request
        environment("sql").check(environment("sql").payload(task, {}))
    tasks.describe(), tasks.check()
    assert checked(path)[0] == 0
    assert writes[1:] == []
    (folder / "seen").touch()
    sqlite3.connect(folder / "seen").close()
    assert len(writes) == 3
    (folder / "seen").unlink()
    assert {
        file: (file.read_bytes(), file.stat().st_mtime_ns)
        for file in folder.rglob("*")
        if file.is_file()
    } == before


def test_identity_is_of_contents_and_changed_databases_are_noticed(folder: Path) -> None:
    path = lines(folder / "a.jsonl", [row(1), row(1, "lake")])
    tasks = FilesTasks(path=path)
    tasks.load("train"), tasks.load("val")
    described = tasks.describe()
    assert tasks.check() == []
    farm = folder / "farm.sqlite"
    times = farm.stat()
    farm.write_bytes(farm.read_bytes().replace(b"Elsa", b"Else"))
    os.utime(farm, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert tasks.check() == ["farm"]
    assert FilesTasks(path=path).describe() != described
    farm.write_bytes(farm.read_bytes().replace(b"Else", b"Elsa"))
    assert FilesTasks(path=path).describe() == described and tasks.check() == []
    make_database(folder / "lake" / "twin.sqlite", "fish", "Nemo")
    assert tasks.check() == ["lake, with twin.sqlite"]
    (folder / "lake" / "twin.sqlite").unlink()
    (folder / "lake" / "lake.sqlite").unlink()
    assert tasks.check() == ["lake"]
    other = lines(folder / "b.jsonl", [row(1), {**row(1, "lake"), "question": "Another?"}])
    make_database(folder / "lake" / "lake.sqlite", "fish", "Wanda")
    assert FilesTasks(path=other).describe()["questions_sha256"] != described["questions_sha256"]


def test_check_names_what_it_finds(folder: Path) -> None:
    make_database(folder / "lake" / "twin.sqlite", "fish", "Nemo")
    rows = [
        row(1, split="train"),
        row(1, split="train"),
        {**row(1, split="train"), "query": "SELECT count(*) FROM cow"},
        row(1, "lake", split="train"),
        row(1, "lake", split="dev"),
        {**row(2, split="dev"), "query": "SELECT milk FROM cow"},
        {**row(3, split="dev"), "query": "SELECT name FROM cow WHERE 0"},
        {**row(4, split="dev"), "query": "DELETE FROM cow"},
    ]
    path = lines(folder / "a.jsonl", rows)
    status, output = checked(path)
    assert status == 1
    for line in (
        f"{path}: 8 good questions over 2 databases, 8 with a gold query",
        "splits: train 4, val 4 (by column)",
        "  clusters of val: farm 3, lake 1",
        f"broken: gold fails: {path}, line 6: farm.sqlite: no such column: milk",
        f"broken: gold fails: {path}, line 8: farm.sqlite: only queries that read are allowed (refused: DELETE cow)",
        f"gold finds nothing, so a match says little: {path}, line 7",
        f"not in train, but its question or gold is: 1: {path}, line 5 like line 4",
        f"judged on together, for their tables are the same: {folder}/lake/lake.sqlite, {folder}/lake/twin.sqlite",
    ):
        assert line in output.splitlines(), output
    assert f"asked again, with another gold: 1: {path}, line 1 like line 2 like line 3" in output
    done = CliRunner().invoke(data_commands.app, ["check", str(path), "--json"])
    report = json.loads(done.stdout)
    assert not report["ok"] and report["clusters"]["val"] == {"farm": 3, "lake": 1}
    assert report["detectable"]["3"] > report["detectable"]["8"] > 0.1


def test_check_names_golds_that_do_not_give_the_same_again(folder: Path) -> None:
    connection = sqlite3.connect(folder / "farm.sqlite")
    connection.execute("CREATE TABLE milk (cow TEXT, litres REAL, current_date TEXT)")
    connection.executemany(
        "INSERT INTO milk VALUES (?, ?, 'now')", [("Elsa", 0.1), ("Emma", 0.2), ("Ella", 0.3)]
    )
    connection.commit()
    connection.close()
    unordered = (
        "SELECT cow FROM milk LIMIT 1",
        "SELECT litres FROM milk WHERE cow = (SELECT cow FROM milk)",
    )
    ordered = (
        *(
            "SELECT cow FROM milk",
            "SELECT cow FROM milk ORDER BY litres DESC LIMIT 1",
            "SELECT sum(litres) FROM milk",
        ),
        *(
            "SELECT cow FROM milk WHERE [current_date] = 'now' LIMIT 3",
            "SELECT date('2020-01-01'), '-- random()'",
        ),
        "SELECT m.current_date AS random, strftime('%Y', '2020-01-01') FROM milk AS m",
    )
    changing = (
        *(
            "SELECT cow FROM milk ORDER BY random()",
            "SELECT CURRENT_TIMESTAMP",
            "SELECT date( 'now', '-1 day')",
        ),
        *('SELECT strftime("%Y", "NOW")', "SELECT datetime()"),
    )
    rows = [
        {**row(n), "query": gold} for n, gold in enumerate((*unordered, *ordered, *changing), 1)
    ]
    path = lines(folder / "a.jsonl", rows)
    status, output = checked(path)
    assert status == 0, output
    finding = "2 gold queries depend on a row order that is not stated (add ORDER BY)"
    found = [line for line in output.splitlines() if re.match(r"(\d+ )?gold ", line)]
    assert found == [
        f"{finding}: {path}, line 1, line 2",
        f"gold has random(), so it gives another result another time: 1: {path}, line 9",
        f"gold has CURRENT_TIMESTAMP, so it gives another result another time: 1: {path}, line 10",
        f"gold has 'now', so it gives another result another time: 2: {path}, line 11, line 12",
        f"gold has datetime() of now, so it gives another result another time: 1: {path}, line 13",
    ]
    report = json.loads(
        CliRunner().invoke(data_commands.app, ["check", str(path), "--json"]).stdout
    )
    assert report["ok"] and len(report["gold_differs"]) == 2
    assert {one["what"]: len(one["places"]) for one in report["gold_changing"]}["'now'"] == 2


UNREAD_ORDER = (
    "SELECT name FROM cow ORDER\nBY name",
    "SELECT name FROM cow ORDER  BY name",
    "select name from cow order/* oldest first */by name desc",
    "SELECT name FROM cow ORDER\tBY name;",
)
FALSE_ORDER = ("SELECT 'in order by name'", "SELECT name FROM cow -- order by name")
READ_ORDER = (
    "SELECT name FROM cow ORDER BY name",
    "SELECT name FROM cow order by\n name",
    "SELECT 'order by', name FROM cow ORDER\nBY name",
    'SELECT name AS "order", name AS "by" FROM cow',
    "SELECT name FROM cow WHERE name = 'order  by'",
)


def test_check_and_loading_name_golds_with_an_order_that_is_misread(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    golds = (*UNREAD_ORDER, *FALSE_ORDER, *READ_ORDER)
    path = lines(folder / "a.jsonl", [{**row(n), "query": gold} for n, gold in enumerate(golds, 1)])
    status, output = checked(path)
    assert status == 0, output
    unread, false = (line for line in output.splitlines() if "order of rows" in line)
    assert "Write ORDER BY with one space so that the order of rows counts" in unread
    assert unread.endswith(f"4: {path}, line 1, line 2, line 3, line 4")
    assert "so the order of rows counts" in false and false.endswith(f"2: {path}, line 5, line 6")
    done = CliRunner().invoke(data_commands.app, ["check", str(path), "--json"])
    found = json.loads(done.stdout)["gold_order"]
    assert [len(one["places"]) for one in found] == [len(UNREAD_ORDER), len(FALSE_ORDER)]
    FilesTasks(path=path).load("all")
    messages = [record.getMessage() for record in caplog.records]
    assert any(
        "Write ORDER BY with one space" in text and f"{path} line 1" in text for text in messages
    )
    assert any("'order' || ' by'" in text and f"{path} line 5" in text for text in messages)


def test_the_order_of_rows_counts_by_the_text_of_gold_as_before(folder: Path) -> None:
    database, answer = folder / "farm.sqlite", "SELECT name FROM cow ORDER BY name DESC"
    for gold in UNREAD_ORDER:
        assert evaluate(database, gold, answer).match is True, gold
    assert evaluate(database, "SELECT name FROM cow ORDER BY name", answer).match is False


def test_a_pipe_as_a_file_of_questions_or_as_a_database_is_refused_at_once(folder: Path) -> None:
    pipe = folder / "questions.jsonl"
    os.mkfifo(pipe)
    database = folder / "farm.sqlite"
    database.unlink()
    os.mkfifo(database)
    with pytest.raises(TaskSetError, match=r"cannot read .*questions\.jsonl: it is a pipe"):
        reading.read(pipe)
    status, output = checked(lines(folder / "a.jsonl", [row(1)]))
    assert status != 0 and "farm" in output
    assert evaluate(database, "SELECT 1", "SELECT 1").match is None
    result = execute(database, "SELECT 1")
    assert result.error_type == "missing_database" and "no regular file" in str(result.error)


def test_check_of_a_whole_file_and_of_what_cannot_be_read(folder: Path) -> None:
    many = [row(n, db) for db in ("farm", "zoo", "lake") for n in range(1, 101)]
    status, output = checked(lines(folder / "a.jsonl", many), "--set", "task.options.val_share=0.4")
    assert status == 0 and output.endswith("\nok\n") and "no question is asked twice" in output
    estimate = re.search(
        r"on val \(questions: 100\): ([\d.]+) points with 3 trainings an arm, ([\d.]+) points with 8",
        output,
    )
    assert estimate and 5 < float(estimate[2]) < float(estimate[1]) < 30
    status, output = checked(folder / "a.jsonl", "--set", "task.val_split=test")
    assert status == 1 and "broken: split 'test' is empty" in output
    for arguments in ((str(folder / "none.jsonl"),), ()):
        done = CliRunner().invoke(harness, ["data", "check", *arguments])
        assert isinstance(done.exception, TaskSetError | ConfigError)
    done = CliRunner().invoke(harness, ["data", "check", "pocket"])
    assert (
        str(done.exception)
        == "pocket is a task set, not a file. Say `harness data check --task pocket`"
    )


def test_check_runs_the_gold_queries_of_any_task_set(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check() -> tuple[int, str]:
        done = CliRunner().invoke(harness, ["data", "check", "--task", "pocket"])
        return done.exit_code, done.output

    rows = [row(n, db) for db in ("farm", "zoo", "lake") for n in range(1, 5)]
    good, broken = (
        rows,
        [*rows[:-2], *(one | {"query": "SELECT max(dayz) FROM fish"} for one in rows[-2:])],
    )
    for number, (given, status) in enumerate(((good, 0), (broken, 1))):
        tasks = FilesTasks(path=lines(folder / f"{number}.jsonl", given), val_share=0.4)
        monkeypatch.setattr("harness_sql.cli.tools.make", lambda *_, tasks=tasks: tasks)
        found, output = check()
        assert (found, output.splitlines()[-1]) == (status, "NOT ok" if status else "ok"), output
        assert ("gold queries: 12, and each of them runs" in output) == (not status)
        assert (
            "broken: gold fails: " in output and "lake.sqlite: no such column: dayz" in output
        ) == bool(status)
