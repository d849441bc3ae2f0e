from __future__ import annotations

import asyncio
import json
import math
import re
import shlex
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.errors import ConfigError, TaskSetError
from harness.mock_model.server import ReceivedRequest
from harness.plugins import reward_identity, reward_spec
from harness.records import Attempt, Problem, Task, Verdict
from harness.testing.data_contract import TaskSetContract, asked
from harness.testing.fixtures import StartServer
from harness_sql.rewards.bird import BirdAccuracy, BirdRVes, BirdSoftF1, paid, time_ratio
from harness_sql.self_correcting.prompts import PROMPTS
from harness_sql.sqlite.environment import database_of
from harness_sql.tasks.bird import BirdTasks
from harness_sql.tasks.bird.layout import BIRD
from harness_sql.tasks.bird.prepare import prepare
from harness_sql.tasks.prepared.descriptions import decoded
from harness_sql.tasks.prepared.verify import verify
from harness_sql.tasks.spider import SpiderTasks
from harness_sql.tasks.spider.prepare import prepare as prepare_spider
from harness_sql.testing import SQLRewardContract

from .published import DESCRIPTIONS, REPO, bird_rows, make_bird, spider_source


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HARNESS_BIRD_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    prepare(make_bird(tmp_path), tmp_path / "out")
    return tmp_path / "out"


def tasks_of(folder: Path, split: str = "dev", **options: Any) -> tuple[BirdTasks, list[Task]]:
    tasks = BirdTasks(str(folder), **options)
    return tasks, list(tasks.load(split))


@pytest.mark.parametrize("nested", [True, False])
def test_the_official_archives_become_one_prepared_folder(tmp_path: Path, nested: bool) -> None:
    report = prepare(make_bird(tmp_path, nested), tmp_path / "out")
    assert (report.task_set, report.databases, report.missing) == ("bird", 2, ["lost"])
    assert report.absent == ["mini_dev"]
    dev = report.parts["dev"]
    assert (dev.questions, dev.runnable, dev.gold_empty) == (5, 4, 1)
    assert [(one["row"], one["error"]) for one in dev.gold_failed] == [(2, "no such table: pig")]
    assert verify(tmp_path / "out", BIRD)["ok"]
    _, tasks = tasks_of(tmp_path / "out")
    assert [(task.data.get("question_id"), task.difficulty) for task in tasks] == [
        *(("0", "simple"), ("1", "challenging"), ("3", "simple"))
    ]
    assert [task.difficulty for task in tasks_of(tmp_path / "out", "train")[1]] == [""]
    with pytest.raises(TaskSetError, match=r"mini_dev\.parquet is missing: the source had none"):
        tasks_of(tmp_path / "out", "mini_dev")


def test_an_unpacked_folder_and_a_file_over_databases_elsewhere_give_the_same(
    prepared: Path, tmp_path: Path
) -> None:
    prepare([tmp_path / "dev_20240627", tmp_path / "train"], tmp_path / "unpacked")
    assert BirdTasks(str(tmp_path / "unpacked")).describe() == BirdTasks(str(prepared)).describe()
    (tmp_path / "mini_dev_sqlite.json").write_text(json.dumps(bird_rows()[:2]))
    prepare([tmp_path / "mini_dev_sqlite.json"], tmp_path / "mini", databases=prepared)
    ids = [task.id for task in tasks_of(tmp_path / "mini", "mini_dev")[1]]
    assert ids == [task.id for task in tasks_of(prepared)[1]][:2]


def test_evidence_stands_between_schema_and_question_and_nothing_where_there_is_none(
    prepared: Path,
) -> None:
    tasks, (first, second, _) = tasks_of(prepared)
    problem = Problem(first.id, first.question, tasks.context(first))
    schema = tasks.schema(first)
    prompt = f"Schema:\n{schema}\n\nEvidence:\nold refers to age > 5\n\nQuestion: {first.question}"
    assert PROMPTS.write(problem).user == prompt
    assert PROMPTS.check(problem, "SELECT 1", "1").user.startswith(f"{prompt}\n\nQuery:")
    assert dict(tasks.context(second)) == {"schema": schema}
    without, _ = tasks_of(prepared, evidence=False)
    plain = PROMPTS.write(Problem(first.id, first.question, without.context(first)))
    assert plain.user == f"Schema:\n{schema}\n\nQuestion: {first.question}"
    assert without.describe() != tasks.describe()


def test_descriptions_stand_below_their_tables_where_they_are_asked_for(prepared: Path) -> None:
    tasks, (task, *_) = tasks_of(prepared, descriptions=True)
    assert tasks.schema(task) == (
        "CREATE TABLE cow (name TEXT, age INTEGER);\n-- name: café name of the cow\n-- age: years\n\n"
        "CREATE TABLE bull (weight REAL);\n-- weight: in kilograms; commonsense evidence: x > 1000 is heavy"
    )
    plain, _ = tasks_of(prepared)
    assert "--" not in plain.schema(task) and "descriptions_sha256" not in plain.describe()
    assert tasks.describe()["descriptions_sha256"] != ""
    short, _ = tasks_of(prepared, descriptions=True, schema_chars=120)
    assert short.schema(task).endswith("\n-- 1 more table: bull")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252", "latin-1"])
def test_descriptions_are_read_in_every_encoding_that_occurs(encoding: str) -> None:
    assert decoded("café – 1".encode(encoding, "ignore")).startswith("café ")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (
            b"\xef\xbb\xbfname,caf\xc3\xa9 1 \x96 2",
            "name,café 1 – 2",
        ),  # a mark, and one byte of Windows
        (b"name,caf\xc3\xa9 \x96 \xe9\x81", "name,café – é\x81"),
        ("name,café".encode("utf-16-le"), "name,café"),
        ("name,café".encode("utf-16-be"), "name,café"),
    ],
)
def test_a_file_in_several_encodings_is_read_byte_by_byte(content: bytes, text: str) -> None:
    assert decoded(content) == text


HEADER = "original_column_name,column_name,column_description,data_format,value_description"


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + HEADER.encode() + b"\nname,name,from 1 \x96 2,text,\n",
        b"\xef\xbb\xbf"
        + HEADER.upper().replace(",", " , ").encode()
        + b"\nname,name,from 1 \x96 2,text,\n",
        (HEADER + "\nname,name,from 1 – 2,text,\n").replace(",", ";").encode("utf-8-sig"),
        (HEADER + "\nname,name,from 1 – 2,text,\n").encode("utf-16-le"),
    ],
)
def test_descriptions_of_a_table_are_read_whatever_its_file_is_written_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setitem(DESCRIPTIONS, "cow.csv", content)
    report = prepare(make_bird(tmp_path), tmp_path / "out")
    tasks, (task, *_) = tasks_of(tmp_path / "out", descriptions=True)
    assert "\n-- name: from 1 – 2\n" in tasks.schema(task)
    assert ["odd.csv" in one and "original_column_name" in one for one in report.unread] == [True]


def test_what_is_not_bird_or_damaged_is_said_in_one_line(tmp_path: Path) -> None:
    dev, train = make_bird(tmp_path)
    for content, message in (
        (b"no zip", "is not a readable zip file"),
        (train.read_bytes()[:-90], "not a readable zip"),
    ):
        dev.write_bytes(content)
        with pytest.raises(TaskSetError, match=message):
            prepare([dev], tmp_path / "out")
    with zipfile.ZipFile(dev, "w") as out:
        out.writestr("dev/dev.json", json.dumps(bird_rows()))
        out.writestr("dev/dev_databases.zip", b"half")
    with pytest.raises(
        TaskSetError, match=r"dev/dev_databases\.zip of dev_20240627\.zip is damaged"
    ):
        prepare([dev], tmp_path / "out")
    with zipfile.ZipFile(dev, "w") as out:
        out.writestr("readme.txt", "")
    with pytest.raises(TaskSetError, match=r"has no dev\.json .* it does not look like BIRD"):
        prepare([dev], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_changed_database_is_refused(prepared: Path) -> None:
    file = prepared / "dev_databases/ranch/ranch.sqlite"
    file.chmod(0o644)
    connection = sqlite3.connect(file)
    connection.execute("DELETE FROM cow")
    connection.commit()
    connection.close()
    with pytest.raises(
        TaskSetError, match="is not as it was prepared. Run `harness data bird SOURCE"
    ):
        tasks_of(prepared)
    assert verify(prepared, BIRD)["problems"] == ["dev_databases/ranch/ranch.sqlite has changed"]


class TestContract(TaskSetContract):
    task_set = "bird"

    @pytest.fixture(scope="class")
    @classmethod
    def options(cls, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("bird")
        (folder / "mini_dev_sqlite.json").write_text(json.dumps(bird_rows()[:2]))
        # More than the 500 of `dev_500`, so that `dev_rest` has questions.
        archives = make_bird(folder, more=510)
        prepare([*archives, folder / "mini_dev_sqlite.json"], folder / "out")
        return {"data_dir": str(folder / "out"), "descriptions": True}


class TestAccuracyContract(SQLRewardContract):
    reward = "bird_accuracy"


class TestSoftF1Contract(SQLRewardContract):
    reward = "bird_soft_f1"


class TestRVesContract(SQLRewardContract):
    reward = "bird_r_ves"

    @pytest.fixture(autouse=True)
    @staticmethod
    def times_are_measured(request: pytest.FixtureRequest) -> None:
        if request.node.name in MEASURED:
            reason = "times are others each time, and gold takes about as long as itself, not half"
            request.node.add_marker(
                pytest.mark.xfail(reason=reason, raises=AssertionError, strict=False)
            )


MEASURED = (
    "test_gold_scores_the_most",
    "test_the_same_attempt_scores_the_same_again",
    "test_attempts_at_once_score_what_each_scores_alone",
)


def value(
    reward: BirdAccuracy | BirdSoftF1, task: Task, answer: str
) -> tuple[float | None, tuple[str, ...]]:
    verdict = asyncio.run(
        reward.score(task, Attempt("r", "a", "ok", "", answer, (), (), (), 0.0, 0.0))
    )
    return verdict.value, verdict.flags


@pytest.mark.parametrize(
    ("gold", "answer", "accuracy", "soft"),
    [
        ("SELECT name FROM cow", "SELECT DISTINCT name FROM cow ORDER BY 1 DESC", 1.0, 1.0),
        ("SELECT name FROM cow", "SELECT DISTINCT name FROM cow ORDER BY 1", 1.0, 0.0),
        ("SELECT name, age FROM cow", "SELECT age, name FROM cow", 0.0, 1.0),
        ("SELECT name, age FROM cow", "SELECT name FROM cow", 0.0, 2 / 3),
        ("SELECT name FROM cow", "SELECT name, age FROM cow", 0.0, 2 / 3),
        ("SELECT name FROM cow", "SELECT name FROM cow WHERE age < 5", 0.0, 2 / 3),
        ("SELECT name FROM cow WHERE age < 5", "SELECT name FROM cow", 0.0, 2 / 3),
        ("SELECT 1", "SELECT 1.0", 1.0, 1.0),
        ("SELECT NULL", "SELECT NULL", 1.0, 1.0),
        ("SELECT name FROM cow", "SELECT 1 WHERE 0", 0.0, 0.0),
    ],
)
def test_rewards_are_those_of_the_official_scripts(
    prepared: Path, gold: str, answer: str, accuracy: float, soft: float
) -> None:
    _, (task, *_) = tasks_of(prepared)
    task = Task(task.id, "bird", "dev", "?", gold, "ranch", data=task.data)
    assert value(BirdAccuracy(), task, answer)[0] == accuracy
    assert value(BirdSoftF1(), task, answer)[0] == pytest.approx(soft)


def test_what_no_official_script_survives_is_flagged(prepared: Path) -> None:
    _, (task, *_) = tasks_of(prepared)
    empty = Task(
        task.id, "bird", "dev", "?", "SELECT name FROM cow WHERE age > 50", "ranch", data=task.data
    )
    assert value(BirdAccuracy(), empty, "SELECT 1 WHERE 0") == (1.0, ("empty_gold",))
    assert value(BirdAccuracy(), empty, "DROP TABLE cow") == (
        0.0,
        ("empty_gold", "statement_refused"),
    )
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"
    assert value(BirdAccuracy(), task, f"{endless} 'Berta' FROM n") == (
        0.0,
        ("prediction_too_large",),
    )
    assert value(BirdAccuracy(timeout_s=0.2), task, f"{endless} count(*) FROM n") == (
        0.0,
        ("prediction_timeout",),
    )
    late = Task(task.id, "bird", "dev", "?", f"{endless} count(*) FROM n", "ranch", data=task.data)
    assert value(BirdSoftF1(timeout_s=0.2), late, "SELECT 1") == (None, ("gold_timeout",))


def verdict(reward: BirdRVes, task: Task, answer: str) -> Verdict:
    return asyncio.run(
        reward.score(task, Attempt("r", "a", "ok", "", answer, (), (), (), 0.0, 0.0))
    )


@pytest.mark.parametrize(
    ("ratio", "reward"),
    [
        *((7.0, 1.25), (2.0, 1.25), (1.99, 1.0), (1.0, 1.0), (0.99, 0.75), (0.5, 0.75)),
        *((0.49, 0.5), (0.25, 0.5), (0.24, 0.25), (0.001, 0.25)),
    ],
)
def test_r_ves_pays_by_the_official_buckets(ratio: float, reward: float) -> None:
    assert paid(ratio) == reward


def test_r_ves_takes_the_mean_of_ratios_without_outliers() -> None:
    assert time_ratio([0.5, 1.5, 1.0]) == 1.0
    assert time_ratio([1.0, 3.0] * 10 + [100.0]) == 2.0
    assert time_ratio([1.0] * 8 + [10.0]) == 2.0  # of nine none lies three deviations away
    assert time_ratio([0.7]) == 0.7 and time_ratio([2.0, 2.0]) == 2.0


@pytest.mark.slow
def test_r_ves_pays_gold_about_one_and_a_wrong_answer_nothing(prepared: Path) -> None:
    _, (task, *_) = tasks_of(prepared)
    counted = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000) SELECT count(*) FROM n"
    slow = Task(task.id, "bird", "dev", "?", counted, "ranch", data=task.data)
    own = verdict(BirdRVes(), slow, counted)
    assert (
        own.value in (math.sqrt(0.75), 1.0, math.sqrt(1.25))
        and own.parts == {"right": 1.0}
        and not own.flags
    )
    assert own.reason.startswith("the same set of rows, gold takes ") and own.reason.endswith(
        "(runs: 20)"
    )
    assert verdict(BirdRVes(), slow, "SELECT 200000").value == math.sqrt(1.25)
    quick = Task(task.id, "bird", "dev", "?", "SELECT 200000", "ranch", data=task.data)
    assert verdict(BirdRVes(), quick, counted).value == math.sqrt(0.25)
    for answer in ("SELECT 0", "SELECT no", "I do not know", "DROP TABLE cow", ""):
        wrong = verdict(BirdRVes(), slow, answer)
        assert (wrong.value, wrong.parts) == (0.0, {"right": 0.0}), answer


def test_r_ves_has_deadlines_and_leaves_unscored_what_accuracy_does(prepared: Path) -> None:
    _, (task, *_) = tasks_of(prepared)
    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    )
    late = Task(task.id, "bird", "dev", "?", endless, "ranch", data=task.data)
    assert value(BirdRVes(timeout_s=0.2), task, endless) == (0.0, ("prediction_timeout",))
    assert value(BirdRVes(timeout_s=0.2), late, "SELECT 1") == (None, ("gold_timeout",))
    for gold, flag in (("SELECT no", "gold_failed"), ("DELETE FROM cow", "gold_failed")):
        broken = Task(task.id, "bird", "dev", "?", gold, "ranch", data=task.data)
        assert value(BirdRVes(), broken, "SELECT 1") == (None, (flag,))
    gone = Task(
        task.id,
        "bird",
        "dev",
        "?",
        "SELECT 1",
        "ranch",
        data={"database": str(prepared / "no.sqlite")},
    )
    assert value(BirdRVes(), gone, "SELECT 1") == (None, ("database_missing",))
    hasty = verdict(BirdRVes(timeout_s=0.5, runs=1_000_000), task, task.gold)
    assert hasty.value is not None and hasty.value >= 0.5 and hasty.flags == ("fewer_runs",)


def test_r_ves_says_in_its_identity_that_it_is_not_reproducible(tmp_path: Path) -> None:
    spec = reward_spec("bird_r_ves")
    assert (spec.low, spec.high) == (0.0, math.sqrt(1.25))
    assert reward_identity(spec, {"cache_folder": str(tmp_path)}, "reward.options") == {
        "timeout_s": 30.0,
        "runs": 20,
        "reproducible": False,
    }
    assert reward_identity(spec, {"runs": "5"}, "reward.options")["runs"] == 5
    with pytest.raises(
        ConfigError, match=r"reward\.options\.runs of 'bird_r_ves': .*greater than 0, got 0"
    ):
        reward_identity(spec, {"runs": 0}, "reward.options")


@pytest.mark.slow
def test_an_evaluation_shows_the_evidence_and_is_recorded_with_its_reward(
    prepared: Path, tmp_path: Path, scripted_server: StartServer
) -> None:
    def reply(request: ReceivedRequest) -> str:
        text = str(request.messages[-1]["content"])
        (gold,) = [row["SQL"] for row in bird_rows() if row["question"] in text]
        informed = "old?" not in text or "Evidence:\nold refers to age > 5\n\nQuestion" in text
        return f"```sql\n{gold if informed else 'SELECT 0'}\n```\nTHE QUERY IS CORRECT."

    server = scripted_server(reply, token_ids=False)
    settings = [
        "--plugin",
        "reference_sql",
        "--task",
        "bird",
        "--set",
        f"task.options.data_dir={prepared}",
    ]
    where = ["--endpoint", server.base_url, "--runs-dir", str(tmp_path / "runs"), "--json"]
    done = CliRunner().invoke(
        app, ["eval", *settings, "--set", "reward.name=bird_accuracy", *where]
    )
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert (
        record["identity"]["reward"] == "bird_accuracy/1"
        and record["identity"]["task_set"]["name"] == "bird"
    )
    assert (record["result"]["accuracy"], record["result"]["empty_golds"]) == (1.0, 1)
    assert record["result"]["by_difficulty"]["challenging"]["tasks"] == 1


BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_bird(tmp_path)
    monkeypatch.chdir(tmp_path)
    page = (REPO / "docs" / "bird.md").read_text(encoding="utf-8")
    commands = [
        line[2:]
        for block in BLOCK.findall(page)
        for line in block.splitlines()
        if line.startswith("$ ")
    ]
    assert len(commands) == 3
    for command in commands:
        done = CliRunner().invoke(app, shlex.split(command)[1:])
        assert done.exit_code == 0, (command, done.output, done.exception)


@pytest.mark.slow
@pytest.mark.spider
def test_gold_against_gold_is_one_but_for_listed_rows_on_a_bird_made_of_spider(
    tmp_path: Path,
) -> None:
    prepare_spider(spider_source(), tmp_path / "spider")
    rows = SpiderTasks(str(tmp_path / "spider")).rows("test_dev.parquet")
    archive = tmp_path / "dev_20240627.zip"
    databases = tmp_path / "dev_databases.zip"
    with zipfile.ZipFile(databases, "w", zipfile.ZIP_DEFLATED) as out:
        for db_id in sorted({row["db_id"] for row in rows}):
            file = tmp_path / "spider" / "database" / db_id / f"{db_id}.sqlite"
            out.write(file, f"dev_databases/{db_id}/{db_id}.sqlite")
    broken = {"db_id": rows[0]["db_id"], "question": "?", "query": "SELECT no FROM where_"}
    asked_ = [
        {"question_id": number, "evidence": "", "difficulty": "simple", "SQL": row["query"], **row}
        for number, row in enumerate([*rows, broken])
    ]
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        out.write(databases, "dev_20240627/dev_databases.zip")
        out.writestr(
            "dev_20240627/dev.json", json.dumps([{**row, "query": None} for row in asked_])
        )
    report = prepare([archive], tmp_path / "bird")
    assert [failure["row"] for failure in report.parts["dev"].gold_failed] == [len(rows)]
    tasks = BirdTasks(str(tmp_path / "bird")).load("dev")
    assert len(tasks) == len(rows) == 972
    for name in ("bird_accuracy", "bird_soft_f1"):
        with asked(reward_spec(name), {}) as reward:
            wrong = [task.id for task in tasks if reward.score(task, task.gold).value != 1.0]
        assert wrong == [], name
    assert all(
        database_of(task).startswith(str(tmp_path / "bird" / "dev_databases")) for task in tasks
    )
