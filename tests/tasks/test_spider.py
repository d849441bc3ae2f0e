from __future__ import annotations

import json
import os
import shutil
import stat
import threading
import tracemalloc
import warnings
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from harness.errors import TaskSetError
from harness.testing.data_contract import TaskSetContract
from harness_sql.cli import data as data_commands
from harness_sql.sqlite.environment import database_of
from harness_sql.sqlite.evaluator import evaluate
from harness_sql.tasks.prepared.prepare import sample_of
from harness_sql.tasks.prepared.verify import verify
from harness_sql.tasks.spider import SpiderTasks
from harness_sql.tasks.spider.fetch import fetch
from harness_sql.tasks.spider.layout import SPIDER
from harness_sql.tasks.spider.prepare import prepare

from .published import make_sqlite, spider_source


def question(db_id: str, text: str, query: str) -> dict[str, str]:
    return {"db_id": db_id, "question": text, "query": query}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VERL_SPIDER_DATA_DIR", raising=False)


@pytest.fixture
def official(tmp_path: Path) -> Path:
    """A small folder in the official layout: one database missing, one gold failing, one gold empty."""
    folder = tmp_path / "official" / "spider_data"
    make_sqlite(
        folder / "database/farm/farm.sqlite",
        "CREATE TABLE cow (name TEXT); INSERT INTO cow VALUES ('Elsa')",
    )
    make_sqlite(
        folder / "database/zoo/zoo.sqlite",
        "CREATE TABLE animal (name TEXT); INSERT INTO animal VALUES ('Leo')",
    )
    (folder / "database/farm/schema.sql").write_text("CREATE TABLE cow (name TEXT); -- by hand")
    train = [
        question("farm", "Which cows?", "SELECT name FROM cow"),
        question("farm", "Which pigs?", "SELECT name FROM pig"),
        question("lost", "What?", "SELECT 1"),
        question("farm", "Which dead cows?", "SELECT name FROM cow WHERE name = 'x'"),
    ]
    dev = [
        question("zoo", f"Which {number}?", f"SELECT name, {number} FROM animal")
        for number in range(6)
    ]
    dev.append(question("lost", "How?", "SELECT 2"))
    (folder / "train_spider.json").write_text(json.dumps(train))
    (folder / "dev.json").write_text(json.dumps(dev))
    return folder


@pytest.fixture
def archive(official: Path, tmp_path: Path) -> Path:
    path = tmp_path / "spider.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for file in sorted(official.parent.rglob("*")):
            out.write(file, file.relative_to(official.parent))
    return path


def test_archive_becomes_a_prepared_folder(archive: Path, tmp_path: Path) -> None:
    report = prepare(archive, tmp_path / "out")
    assert report.missing == ["lost"]
    train, dev = report.parts["train"], report.parts["dev"]
    assert (train.questions, train.runnable, train.gold_empty, train.skipped) == (
        4,
        3,
        1,
        {"lost": 1},
    )
    assert [(item["row"], item["error"]) for item in train.gold_failed] == [
        (1, "no such table: pig")
    ]
    assert (dev.questions, dev.runnable) == (7, 6)
    table = pyarrow.parquet.read_table(tmp_path / "out/test_dev.parquet")
    assert table.column_names == ["question", "db_id", "query", "db_path"]
    assert table.to_pylist()[0]["db_path"] == "database/zoo/zoo.sqlite"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["official", "out", "spider.zip"]
    assert verify(tmp_path / "out", SPIDER)["ok"]


def test_preparing_again_gives_the_same_files(
    archive: Path, official: Path, tmp_path: Path
) -> None:
    prepare(archive, tmp_path / "one")
    prepare(archive, tmp_path / "one")
    prepare(official, tmp_path / "two")
    names = ["train_spider.parquet", "test_dev.parquet", "test_dev_500.parquet"]
    assert all(
        (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
        for name in names
    )
    manifests = [
        json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("one", "two")
    ]
    assert manifests[0]["databases"] == manifests[1]["databases"]


def test_folder_can_be_prepared_where_it_is(official: Path) -> None:
    database = official / "database/zoo/zoo.sqlite"

    def state() -> tuple[int, int, int]:
        """Return the inode, size and time of modification; a read may change the time of access."""
        found = database.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns

    before = state()
    prepare(official, official)
    assert state() == before
    assert len(SpiderTasks(str(official)).load("dev")) == 6


def test_tasks_leave_out_what_cannot_be_scored(archive: Path, tmp_path: Path) -> None:
    prepare(archive, tmp_path / "out")
    tasks = SpiderTasks(str(tmp_path / "out"))
    assert [task.question for task in tasks.load("train")] == ["Which cows?", "Which dead cows?"]
    dev = tasks.load("dev")
    assert len({task.id for task in dev}) == 6 and all(
        Path(database_of(task)).is_file() for task in dev
    )
    assert [task.id for task in tasks.load("val")] == [task.id for task in dev]
    assert all(evaluate(database_of(task), task.gold, task.gold).match for task in dev)
    with pytest.raises(TaskSetError, match="no split 'test'"):
        tasks.load("test")


def test_rest_of_dev_is_dev_without_the_sample(archive: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    prepare(archive, folder)
    dev = pyarrow.parquet.read_table(folder / "test_dev.parquet").to_pylist()
    repeated = [*dev, dev[0], dev[1]]
    sampled = [dev[0], dev[3]]
    for name, rows in (("test_dev", repeated), ("test_dev_500", sampled)):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{name}.parquet")
    tasks = SpiderTasks(str(folder))
    whole, sample, rest = ([t.id for t in tasks.load(s)] for s in ("dev", "dev_500", "dev_rest"))
    assert len(sample) == 2 and len(rest) == 6
    assert not {*sample} & {*rest} and {*sample, *rest} == {*whole}
    assert rest == [task_id for task_id in whole if task_id in rest]
    assert sum(task_id.endswith("-2") for task_id in rest) == 2


def test_rest_of_dev_is_named_where_nothing_is_left(archive: Path, tmp_path: Path) -> None:
    prepare(archive, tmp_path / "out")
    with pytest.raises(TaskSetError, match="split 'dev_rest' of spider has no question"):
        SpiderTasks(str(tmp_path / "out")).load("dev_rest")


@pytest.mark.spider
def test_rest_of_dev_has_the_other_472_questions(spider: Any) -> None:
    tasks = SpiderTasks(str(spider[0]))
    sample, rest = ({task.id for task in tasks.load(split)} for split in ("dev_500", "dev_rest"))
    assert (len(sample), len(rest)) == (500, 472)
    assert sample | rest == {task.id for task in tasks.load("dev")} and not sample & rest


def test_schema_is_from_the_database_unless_the_file_is_asked_for(
    archive: Path, tmp_path: Path
) -> None:
    prepare(archive, tmp_path / "out")
    first = SpiderTasks(str(tmp_path / "out")).load("train")[0]
    assert SpiderTasks(str(tmp_path / "out")).schema(first) == "CREATE TABLE cow (name TEXT);"
    assert SpiderTasks(str(tmp_path / "out"), style="compact").schema(first) == "cow(name text)"
    assert "-- cow" not in SpiderTasks(str(tmp_path / "out"), sample_rows=1).schema(first)
    assert "-- Elsa" in SpiderTasks(str(tmp_path / "out"), sample_rows=1).schema(first)
    (Path(database_of(first)).with_name("schema.sql")).write_text("CREATE TABLE cow (by_hand int);")
    assert "by_hand" in SpiderTasks(str(tmp_path / "out"), use_schema_file=True).schema(first)


def test_description_has_counts_and_hashes_but_no_paths(archive: Path, tmp_path: Path) -> None:
    prepare(archive, tmp_path / "out")
    described = json.dumps(SpiderTasks(str(tmp_path / "out")).describe())
    assert str(tmp_path) not in described
    counts = json.loads(described)["counts"]["train"]
    assert counts == {"questions": 4, "runnable": 3, "gold_failed": 1, "gold_empty": 1}


def test_environment_names_the_folder(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERL_SPIDER_DATA_DIR", str(tmp_path / "named"))
    done = CliRunner().invoke(data_commands.app, ["spider", str(archive), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["parts"]["dev"]["runnable"] == 6
    assert len(SpiderTasks().load("dev")) == 6


def test_folder_of_agent_lightnings_example_is_accepted(official: Path, tmp_path: Path) -> None:
    folder = tmp_path / "example"
    shutil.copytree(official / "database", folder / "database")
    make_sqlite(
        folder / "test_database/zoo/zoo.sqlite", "CREATE TABLE animal (name TEXT, kind TEXT)"
    )
    for file, name in (
        ("train_spider.json", "train_spider.parquet"),
        ("dev.json", "test_dev.parquet"),
    ):
        rows = json.loads((official / file).read_text())
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / name)
    tasks = SpiderTasks(str(folder))
    assert len(tasks.load("train")) == 3
    assert Path(database_of(tasks.load("dev")[0])).parts[-3] == "test_database"
    assert tasks.describe()["databases"] == 3
    report = prepare(folder, tmp_path / "out")
    assert report.parts["dev"].runnable == 6
    assert (
        Path(database_of(SpiderTasks(str(tmp_path / "out")).load("dev")[0])).parts[-3]
        == "test_database"
    )


def test_unprepared_folder_says_what_to_run(tmp_path: Path, official: Path) -> None:
    for folder in (tmp_path / "nothing", official):
        with pytest.raises(TaskSetError, match=r"Run: harness data spider SOURCE --out"):
            SpiderTasks(str(folder))


@pytest.mark.parametrize("damage", ["half", "text", "flip", "empty"])
def test_damaged_archive_is_one_line_and_leaves_nothing(
    archive: Path, tmp_path: Path, damage: str
) -> None:
    content = bytearray(archive.read_bytes())
    if damage == "half":
        content = content[: len(content) // 2]
    elif damage == "text":
        content = bytearray(b"not a zip file")
    elif damage == "empty":
        content = bytearray()
    else:
        with zipfile.ZipFile(archive) as opened:
            entry = opened.getinfo("spider_data/database/farm/farm.sqlite")
        content[entry.header_offset + 120] ^= 0xFF
    archive.write_bytes(content)
    with pytest.raises(TaskSetError) as caught:
        prepare(archive, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["official", "spider.zip"]


def test_wrong_layout_is_said(tmp_path: Path, official: Path) -> None:
    (tmp_path / "some").mkdir()
    with pytest.raises(TaskSetError, match="does not look like Spider"):
        prepare(tmp_path / "some", tmp_path / "out")
    with pytest.raises(TaskSetError, match="no file or folder"):
        prepare(tmp_path / "none", tmp_path / "out")
    (official / "dev.json").write_text('[{"question": "x"}]')
    with pytest.raises(TaskSetError, match=r"dev\.json .* lacks 'db_id'"):
        prepare(official, tmp_path / "out")
    (official / "dev.json").write_text("[{")
    with pytest.raises(TaskSetError, match=r"dev\.json .* is damaged"):
        prepare(official, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_truncated_database_is_reported_and_its_questions_skipped(
    official: Path, tmp_path: Path
) -> None:
    file = official / "database/farm/farm.sqlite"
    file.write_bytes(file.read_bytes()[:5000])
    report = prepare(official, tmp_path / "out")
    assert list(report.damaged) == ["database/farm/farm.sqlite"]
    assert report.missing == ["lost"]
    assert report.parts["train"].runnable == 0 and report.parts["dev"].runnable == 6


def test_foreign_folder_is_not_overwritten(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(TaskSetError, match="not empty"):
        prepare(archive, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_interrupted_work_keeps_what_was_there(archive: Path, tmp_path: Path) -> None:
    prepare(archive, tmp_path / "out")
    before = (tmp_path / "out/manifest.json").read_bytes()

    def interrupt(what: str, done: int, total: int) -> None:
        if what.startswith("running"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(archive, tmp_path / "out", progress=interrupt)
    assert (tmp_path / "out/manifest.json").read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["official", "out", "spider.zip"]


def test_verify_names_changed_and_missing_files(archive: Path, tmp_path: Path) -> None:
    prepare(archive, tmp_path / "out")
    (tmp_path / "out/database/zoo/zoo.sqlite").unlink()
    with (tmp_path / "out/test_dev.parquet").open("ab") as file:
        file.write(b"x")
    done = CliRunner().invoke(
        data_commands.app, ["verify", "--dir", str(tmp_path / "out"), "--json"]
    )
    assert done.exit_code == 1
    assert sorted(json.loads(done.stdout)["problems"]) == [
        "database/zoo/zoo.sqlite is missing",
        "test_dev.parquet has changed",
    ]


def test_changed_database_is_refused_and_noticed_at_the_end(archive: Path, tmp_path: Path) -> None:
    prepare(archive, tmp_path / "out")
    file = tmp_path / "out/database/farm/farm.sqlite"
    tasks = SpiderTasks(data_dir=str(tmp_path / "out"))
    tasks.load("train")
    assert tasks.check() == [] and file.stat().st_mode & 0o222 == 0
    times = file.stat()
    file.chmod(0o644)
    file.write_bytes(file.read_bytes().replace(b"Elsa", b"Emma"))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert tasks.check() == ["database/farm/farm.sqlite"]
    again = SpiderTasks(data_dir=str(tmp_path / "out"))
    with pytest.raises(
        TaskSetError, match=r"farm\.sqlite is not as it was prepared\. Run `harness data spider"
    ):
        again.load("train")
    assert again.load("dev") and again.check() == []


def test_zip_members_outside_the_layout_are_not_written(
    official: Path, archive: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(archive, "a") as out:
        out.writestr("spider_data/database/../../evil.sqlite", b"x")
        out.writestr("spider_data/database/farm/run.sh", b"x")
        out.writestr("../evil.sqlite", b"x")
    prepare(archive, tmp_path / "out")
    assert sorted(file.name for file in (tmp_path / "out/database/farm").iterdir()) == [
        "farm.sqlite",
        "schema.sql",
    ]
    assert not list(tmp_path.rglob("evil.sqlite"))


def test_links_in_an_archive_are_not_followed(archive: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.sqlite"
    make_sqlite(secret, "CREATE TABLE cow (name TEXT); INSERT INTO cow VALUES ('a secret')")
    with zipfile.ZipFile(archive, "a") as out:
        for name in ("database/lost/lost.sqlite", "tables.json"):
            link = zipfile.ZipInfo(f"spider_data/{name}")
            link.create_system = 3  # Unix, whose file types are in the upper half of the attributes
            link.external_attr = (stat.S_IFLNK | 0o777) << 16
            out.writestr(link, str(secret))
    prepare(archive, tmp_path / "out")
    files = list((tmp_path / "out").rglob("*"))
    assert files and not any(path.is_symlink() for path in files)
    content = secret.read_bytes()
    assert not any(path.is_file() and path.read_bytes() == content for path in files)


@pytest.mark.slow
@pytest.mark.parametrize("declared", [None, 1000])
def test_an_archive_that_unpacks_to_more_than_memory_is_refused_before_it_does(
    archive: Path, tmp_path: Path, declared: int | None
) -> None:
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as out:
        entry = zipfile.ZipInfo("spider_data/dev.json")
        entry.compress_type = zipfile.ZIP_DEFLATED
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the name is there already
            with out.open(entry, "w") as stream:
                for _ in range(300):
                    stream.write(b" " * 2**20)
        if declared is not None:
            entry.file_size = declared  # as the archive's own list then has it
    tracemalloc.start()
    try:
        with pytest.raises(TaskSetError, match="dev.json of spider.zip") as caught:
            prepare(archive, tmp_path / "out")
        assert tracemalloc.get_traced_memory()[1] < 50 * 2**20
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value) and ("300 MiB" in str(caught.value)) == (declared is None)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["official", "spider.zip"]


def test_an_archive_that_unpacks_to_more_than_the_disk_is_refused_before_it_does(
    archive: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(archive, "a") as out:
        out.getinfo("spider_data/database/farm/farm.sqlite").file_size = 10**15
        out.writestr("spider_data/README.md", b"x")
    with pytest.raises(
        TaskSetError, match="unpack to 953,674,316 MiB, and the disk of .* Make room"
    ) as caught:
        prepare(archive, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["official", "spider.zip"]


def test_sample_is_fixed() -> None:
    assert len(sample_of(1034)) == 500 == len(set(sample_of(1034)))
    assert sample_of(1034)[:5] == FIRST_OF_SAMPLE
    assert sample_of(3) == [0, 1, 2]


FIRST_OF_SAMPLE = [0, 3, 5, 6, 8]


class Served:
    """A file behind HTTP that may break off and resume."""

    def __init__(
        self, content: bytes, break_at: int | None, content_type: str = "application/zip"
    ) -> None:
        served = self
        self.ranges: list[str | None] = []
        self.break_at = break_at

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                wanted = self.headers.get("Range")
                served.ranges.append(wanted)
                start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
                rest = content[start:]
                self.send_response(206 if wanted else 200)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(rest)))
                self.end_headers()
                self.wfile.write(rest[: served.break_at])

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/spider.zip"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def serve() -> Iterator[Any]:
    servers: list[Served] = []

    def start(*arguments: Any) -> Served:
        servers.append(Served(*arguments))
        return servers[-1]

    yield start
    for served in servers:
        served.server.shutdown()
        served.server.server_close()


def test_download_resumes_where_it_broke_off(archive: Path, tmp_path: Path, serve: Any) -> None:
    served = serve(archive.read_bytes(), 300)
    with pytest.raises(TaskSetError, match="again to resume"):
        fetch(tmp_path / "got.zip", served.url)
    assert not (tmp_path / "got.zip").exists()
    served.break_at = None
    fetch(tmp_path / "got.zip", served.url)
    assert served.ranges == [None, "bytes=300-"]
    assert (tmp_path / "got.zip").read_bytes() == archive.read_bytes()


def test_fetch_command_downloads_and_prepares(archive: Path, tmp_path: Path, serve: Any) -> None:
    served = serve(archive.read_bytes(), None)
    arguments = ["fetch", "spider", "--url", served.url, "--out", str(tmp_path / "out"), "--json"]
    done = CliRunner().invoke(data_commands.app, arguments)
    assert done.exit_code == 0, done.output
    assert sorted(file.name for file in tmp_path.iterdir()) == ["official", "out", "spider.zip"]


def test_download_of_something_else_is_said(tmp_path: Path, serve: Any) -> None:
    with pytest.raises(TaskSetError, match="web page"):
        fetch(tmp_path / "a.zip", serve(b"<html>", None, "text/html").url)
    with pytest.raises(TaskSetError, match="no readable zip"):
        fetch(tmp_path / "b.zip", serve(b"x" * 100, None).url)
    with pytest.raises(TaskSetError, match="cannot download"):
        fetch(tmp_path / "c.zip", "http://127.0.0.1:9/x.zip")
    assert [file.name for file in tmp_path.iterdir() if file.suffix in (".zip", ".part")] == []


@pytest.fixture(scope="module")
def spider(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("spider") / "prepared"
    return folder, prepare(spider_source(), folder)


@pytest.mark.spider
class TestContract(TaskSetContract):
    task_set = "spider"

    @pytest.fixture(scope="class")
    @classmethod
    def options(cls, spider: Any) -> dict[str, str]:
        return {"data_dir": str(spider[0])}


@pytest.mark.spider
def test_official_counts(spider: Any) -> None:
    _, report = spider
    parts = report.parts
    assert (parts["dev"].questions, parts["train"].questions) == (1034, 7000)
    assert parts["train_others"].questions == 1659
    if report.missing == ["baseball_1", "soccer_1", "wta_1"]:
        assert [parts[name].runnable for name in ("dev", "train", "train_others")] == [
            972,
            6904,
            1659,
        ]
        assert len(parts["train"].gold_failed) == 3 and not parts["dev"].gold_failed


@pytest.mark.slow
@pytest.mark.spider
@pytest.mark.parametrize("split", ["dev", "train", "train_others"])
def test_gold_against_gold_scores_one_on_every_usable_question(spider: Any, split: str) -> None:
    tasks = SpiderTasks(str(spider[0])).load(split)
    wrong = [
        task.id
        for task in tasks
        if evaluate(database_of(task), task.gold, task.gold).match is not True
    ]
    assert wrong == []


@pytest.mark.spider
def test_constant_empty_answer_scores_nothing_on_dev(spider: Any) -> None:
    tasks = SpiderTasks(str(spider[0])).load("dev")
    assert not any(
        evaluate(database_of(task), task.gold, "SELECT 1 WHERE 0").match for task in tasks
    )


@pytest.mark.spider
def test_every_schema_fits_and_names_its_tables(spider: Any) -> None:
    tasks = SpiderTasks(str(spider[0]), schema_chars=4000)
    for task in tasks.load("dev_500"):
        assert 0 < len(tasks.schema(task)) <= 4000


def test_train_is_cut_by_database_and_then_by_gold_query() -> None:
    from harness_sql.tasks.spider import _splits_of

    cuts = {
        (db, gold): _splits_of(f"database_{db}", f"SELECT {gold}")
        for db in range(400)
        for gold in range(10)
    }
    assert all(len({cuts[db, gold][1] for gold in range(10)}) == 1 for db in range(400))
    a = sum("train_a" in cut for cut in cuts.values()) / len(cuts)
    b = [cut[2] for cut in cuts.values() if "train_b" in cut]
    assert 0.7 < a < 0.8 and set(b) == {"train_b_fit", "train_b_held"}
    assert 0.15 < b.count("train_b_held") / len(b) < 0.25


@pytest.mark.spider
def test_the_cuts_of_train_are_a_partition(spider: Any) -> None:
    tasks = SpiderTasks(str(spider[0]))
    ids = {
        split: {task.id for task in tasks.load(split)} for split in ("train", "train_a", "train_b")
    }
    assert ids["train_a"] | ids["train_b"] == ids["train"] and not ids["train_a"] & ids["train_b"]
    fit, held = tasks.load("train_b_fit"), tasks.load("train_b_held")
    assert {task.id for task in [*fit, *held]} == ids["train_b"]
    assert not {(task.cluster, task.gold) for task in fit} & {
        (task.cluster, task.gold) for task in held
    }
