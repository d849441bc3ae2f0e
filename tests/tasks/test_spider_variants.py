from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.config import load_config
from harness.errors import ConfigError, TaskSetError
from harness.testing.data_contract import TaskSetContract
from harness.testing.fixtures import StartServer
from harness.training.checks import check
from harness_sql.sqlite.environment import database_of
from harness_sql.sqlite.evaluator import evaluate
from harness_sql.tasks.prepared.verify import verify
from harness_sql.tasks.spider import (
    SpiderDKTasks,
    SpiderRealisticTasks,
    SpiderSynTasks,
    SpiderTasks,
)
from harness_sql.tasks.spider.layout import REALISTIC
from harness_sql.tasks.spider.prepare import prepare

from .published import ANIMAL, COW, REPO, make_spider, make_sqlite, spider_source, syn, zipped

DEV = [{"db_id": "zoo", "question": "Which of them?", "query": "SELECT name FROM animal"}]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VERL_SPIDER_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def spider(tmp_path: Path) -> Path:
    return make_spider(tmp_path / "spider_data")


@pytest.fixture
def realistic(tmp_path: Path) -> Path:
    path = tmp_path / "spider-realistic.json"
    path.write_text(json.dumps(DEV))
    return path


def make_syn(folder: Path) -> Path:
    """The published repository, as its archive unpacks."""
    for name in ("train_spider", "dev"):
        rows = json.loads((folder / "spider_data" / f"{name}.json").read_text())
        file = folder / "Spider-Syn-master/Spider-Syn" / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(syn(rows)))
    return folder / "Spider-Syn-master"


def make_dk(folder: Path) -> Path:
    path = folder / "Spider-DK-master"
    make_sqlite(path / "database/new_farm/new_farm.sqlite", COW)
    own = {"db_id": "new_farm", "question": "Which cows?", "query": "SELECT name FROM cow"}
    (path / "Spider-DK.json").write_text(json.dumps([*DEV, own]))
    (path / "tables.json").write_text("[]")
    return path


def make_test_suite(folder: Path) -> Path:
    """Two databases for `zoo`, which differ in their rows."""
    make_sqlite(folder / "database/zoo/zoo.sqlite", ANIMAL)
    make_sqlite(
        folder / "database/zoo/zoo_1.sqlite", f"{ANIMAL} INSERT INTO animal VALUES ('Kim', 'emu');"
    )
    make_sqlite(folder / "database/unused/unused.sqlite", ANIMAL)
    return folder


def test_syn_asks_in_its_own_words_over_the_databases_of_another_folder(
    spider: Path, tmp_path: Path
) -> None:
    report = prepare(
        zipped(make_syn(tmp_path), tmp_path / "syn.zip"), tmp_path / "out", databases=spider
    )
    assert (report.task_set, report.absent) == ("spider_syn", [])
    tasks = SpiderSynTasks(str(tmp_path / "out"))
    assert [task.question for task in tasks.load("dev")] == ["Which animals? In other words."]
    assert {(task.task_set, task.split) for task in tasks.load("train")} == {
        ("spider_syn", "train")
    }
    again = prepare(tmp_path / "out", tmp_path / "again")
    assert (
        again.task_set == "spider_syn"
        and SpiderSynTasks(str(tmp_path / "again")).describe() == tasks.describe()
    )


@pytest.mark.parametrize(
    "form", ["unpacked", "archive", "prepared", "folder of databases", "renamed"]
)
def test_databases_are_found_in_every_form_of_another_spider(
    spider: Path, realistic: Path, tmp_path: Path, form: str
) -> None:
    if form == "prepared":
        prepare(spider, tmp_path / "prepared")
    elif form == "renamed":
        shutil.copytree(spider / "database", tmp_path / "mine")
    given = {
        "unpacked": spider,
        "archive": zipped(spider, tmp_path / "spider.zip"),
        "prepared": tmp_path / "prepared",
        "folder of databases": spider / "database",
        "renamed": tmp_path / "mine",
    }[form]
    report = prepare(realistic, tmp_path / "out", databases=given)
    assert (report.task_set, report.databases) == ("spider_realistic", 1)
    tasks = SpiderRealisticTasks(str(tmp_path / "out"))
    assert [task.cluster for task in tasks.load("dev")] == ["zoo"]
    assert (
        tasks.describe()["name"] == "spider_realistic" and verify(tmp_path / "out", REALISTIC)["ok"]
    )


def test_dk_brings_databases_of_its_own(spider: Path, tmp_path: Path) -> None:
    source = make_dk(tmp_path)
    alone = prepare(source, tmp_path / "alone")
    assert alone.missing == ["zoo"] and alone.parts["dev"].runnable == 1
    prepare(source, tmp_path / "out", databases=spider)
    assert [task.cluster for task in SpiderDKTasks(str(tmp_path / "out")).load("dev")] == [
        "zoo",
        "new_farm",
    ]


def test_without_any_database_it_is_said_where_to_name_them(
    realistic: Path, spider: Path, tmp_path: Path
) -> None:
    with pytest.raises(TaskSetError, match="has none of the 1 databases .* --databases FOLDER"):
        prepare(realistic, tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(TaskSetError, match=r"has no databases .* Correct --databases"):
        prepare(realistic, tmp_path / "out", databases=tmp_path / "empty")
    realistic.write_text("[]")
    with pytest.raises(TaskSetError, match="has no questions in it"):
        prepare(realistic, tmp_path / "out", databases=spider)
    assert not (tmp_path / "out").exists()


def test_a_folder_of_one_variant_is_not_taken_for_another(
    spider: Path, realistic: Path, tmp_path: Path
) -> None:
    prepare(realistic, tmp_path / "out", databases=spider)
    with pytest.raises(TaskSetError, match="has none of train_spider.parquet"):
        SpiderTasks(str(tmp_path / "out"))
    prepare(make_syn(tmp_path), tmp_path / "out", databases=spider)
    with pytest.raises(
        TaskSetError, match="is prepared for task set 'spider_syn', not for 'spider'"
    ):
        SpiderTasks(str(tmp_path / "out"))


def test_a_prediction_has_to_be_right_on_every_database_of_the_test_suite(
    spider: Path, tmp_path: Path
) -> None:
    prepare(spider, tmp_path / "out", databases=make_test_suite(tmp_path / "suite"))
    assert (
        not (tmp_path / "out/database/unused").exists()
        and (tmp_path / "out/database/farm/farm.sqlite").is_file()
    )
    (task,) = SpiderTasks(str(tmp_path / "out")).load("dev")
    by_chance = "SELECT 'Leo' UNION SELECT 'Ida'"
    assert evaluate(spider / "database/zoo/zoo.sqlite", task.gold, by_chance).match is True
    assert evaluate(database_of(task), task.gold, by_chance).match is False
    assert evaluate(database_of(task), task.gold, task.gold).match is True


def test_a_gold_that_fails_on_one_database_of_the_test_suite_is_listed(
    spider: Path, tmp_path: Path
) -> None:
    suite = make_test_suite(tmp_path / "suite")
    rows = [
        *DEV,
        {
            "db_id": "zoo",
            "question": "Sum?",
            "query": "SELECT json(name) FROM animal WHERE name = 'Kim'",
        },
    ]
    (spider / "dev.json").write_text(json.dumps(rows))
    report = prepare(spider, tmp_path / "out", databases=suite)
    assert [failure["error"] for failure in report.parts["dev"].gold_failed] == [
        "malformed JSON (on zoo_1.sqlite)"
    ]
    assert len(SpiderTasks(str(tmp_path / "out")).load("dev")) == 1


def test_what_was_published_without_train_can_be_measured_but_not_trained(
    spider: Path, realistic: Path, tmp_path: Path
) -> None:
    prepare(realistic, tmp_path / "out", databases=spider)
    settings = [
        "task.name=spider_realistic",
        "task.val_split=dev",
        f"task.options.data_dir={tmp_path / 'out'}",
    ]
    config = load_config("cpu-spider", None, settings, agent="reference_sql")
    check(config, trains=False)
    with pytest.raises(ConfigError, match="'spider_realistic' has no split 'train'"):
        check(config)


@pytest.mark.parametrize("train", ["missing", "empty"])
def test_a_spider_without_train_questions_is_measured(
    spider: Path, tmp_path: Path, train: str
) -> None:
    if train == "missing":
        (spider / "train_spider.json").unlink()
    else:
        (spider / "train_spider.json").write_text("[]")
    report = prepare(spider, tmp_path / "out")
    assert report.absent == ["train"] * (train == "missing") + ["train_others"]
    tasks = SpiderTasks(str(tmp_path / "out"))
    assert len(tasks.load("dev")) == 1
    reason = (
        "is missing: the source had none"
        if train == "missing"
        else "has no question with a database"
    )
    with pytest.raises(TaskSetError, match=reason):
        tasks.load("train")


@pytest.mark.slow
def test_an_evaluation_names_the_variant_and_a_refused_one_leaves_nothing(
    spider: Path, realistic: Path, tmp_path: Path, scripted_server: StartServer
) -> None:
    prepare(realistic, databases=spider)
    reply = "```sql\nSELECT name FROM animal\n```\nTHE QUERY IS CORRECT."
    server = scripted_server(lambda request: reply, token_ids=False)
    runs = tmp_path / "runs"

    def evaluated(*more: str) -> Any:
        settings = (
            "--plugin",
            "reference_sql",
            "--endpoint",
            server.base_url,
            "--runs-dir",
            str(runs),
        )
        return CliRunner().invoke(app, ["eval", *settings, "--json", *more])

    for refused in (("--task", "spider_syn"), ("--task", "spider_realistic", "--split", "train")):
        assert evaluated(*refused).exception is not None
        assert not runs.exists() or not list(runs.iterdir())
    done = evaluated("--task", "spider_realistic")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert (
        record["identity"]["task_set"]["name"] == "spider_realistic"
        and record["result"]["accuracy"] == 1.0
    )
    assert record["identity"]["task_set"]["citation"].startswith("Deng et al. 2021")


BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_commands_of_the_page_run(
    spider: Path, realistic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zipped(make_syn(tmp_path), tmp_path / "Spider-Syn-master.zip")
    zipped(make_dk(tmp_path), tmp_path / "Spider-DK-master.zip")
    zipped(make_test_suite(tmp_path / "suite"), tmp_path / "testsuitedatabases.zip", root=False)
    zipped(spider, tmp_path / "spider_data.zip")
    monkeypatch.chdir(tmp_path)
    page = (REPO / "docs" / "spider.md").read_text(encoding="utf-8")
    commands = [
        line[2:]
        for block in BLOCK.findall(page)
        for line in block.splitlines()
        if line.startswith("$ ")
    ]
    assert len(commands) == 6
    for command in commands:
        done = CliRunner().invoke(app, shlex.split(command, comments=True)[1:])
        assert done.exit_code == 0, (command, done.output, done.exception)


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Variants in their published layouts, made of Spider's questions and prepared over its databases."""
    source, folder = spider_source(), tmp_path_factory.mktemp("variants")
    prepare(source, folder / "spider")
    rows = SpiderTasks(str(folder / "spider")).rows("test_dev.parquet")
    (folder / "dev.json").write_text(json.dumps(syn(rows)))
    (folder / "spider-realistic.json").write_text(json.dumps(rows[:500]))
    (folder / "Spider-DK.json").write_text(json.dumps(rows[500:]))
    for name in ("dev", "spider-realistic", "Spider-DK"):
        prepare(folder / f"{name}.json", folder / name, databases=folder / "spider")
    return folder


class _Contract(TaskSetContract):
    folder = ""

    @pytest.fixture(scope="class")
    @classmethod
    def options(cls, variants: Path) -> dict[str, str]:
        return {"data_dir": str(variants / cls.folder)}


@pytest.mark.spider
class TestRealistic(_Contract):
    task_set = "spider_realistic"
    folder = "spider-realistic"


@pytest.mark.spider
class TestDK(_Contract):
    task_set = "spider_dk"
    folder = "Spider-DK"


@pytest.mark.spider
def test_gold_against_gold_scores_one_on_every_question_of_a_variant(variants: Path) -> None:
    tasks = SpiderSynTasks(str(variants / "dev")).load("dev")
    assert len(tasks) > 900 and all(task.question.endswith("In other words.") for task in tasks)
    assert [
        task.id
        for task in tasks
        if evaluate(database_of(task), task.gold, task.gold).match is not True
    ] == []
