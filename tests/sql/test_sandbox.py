from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness_sql.sqlite.evaluator import evaluate
from harness_sql.sqlite.functions import Functions
from harness_sql.sqlite.sandbox import Limits, execute, render

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
WRITES = [
    "INSERT INTO singer (name) VALUES ('x')",
    "INSERT INTO singer (name) VALUES ('x') RETURNING name",
    "UPDATE singer SET age = 1",
    "UPDATE singer SET age = 1 RETURNING age",
    "DELETE FROM singer",
    "WITH x AS (SELECT 1) DELETE FROM singer",
    "REPLACE INTO singer (singer_id) VALUES (1)",
    "CREATE TABLE t (x)",
    "CREATE TEMP TABLE t (x)",
    "CREATE TEMP VIEW v AS SELECT 1",
    "CREATE VIEW v AS SELECT 1",
    "CREATE INDEX i ON singer (age)",
    "CREATE TRIGGER r AFTER INSERT ON singer BEGIN SELECT 1; END",
    "CREATE VIRTUAL TABLE f USING fts5(x)",
    "DROP TABLE singer",
    "ALTER TABLE singer ADD COLUMN x",
    "ALTER TABLE singer RENAME TO s",
    "ATTACH DATABASE '{folder}/new.sqlite' AS n",
    "ATTACH ':memory:' AS n",
    "DETACH main",
    "VACUUM",
    "VACUUM INTO '{folder}/copy.sqlite'",
    "PRAGMA user_version = 3",
    "PRAGMA journal_mode = WAL",
    "PRAGMA query_only = 0",
    "PRAGMA hard_heap_limit = 0",
    "PRAGMA writable_schema = 1",
    "PRAGMA wal_checkpoint",
    "PRAGMA database_list",
    "BEGIN",
    "BEGIN IMMEDIATE",
    "COMMIT",
    "SAVEPOINT s",
    "REINDEX",
    "ANALYZE",
    "SELECT load_extension('evil')",
    "SELECT fts3_tokenizer('simple')",
]


def state(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("sql", WRITES)
def test_writing_is_refused_and_leaves_no_trace(singers: Path, sql: str) -> None:
    before = state(singers.parent)
    result = execute(singers, sql.replace("{folder}", str(singers.parent)))
    assert not result.ok
    # FTS3's tokenizer function does not exist in every build
    assert result.error_type == "denied" or "fts3" in sql
    assert state(singers.parent) == before


def test_rows_columns_and_tables_are_reported(singers: Path) -> None:
    result = execute(
        singers,
        "SELECT s.name, c.title FROM singer s JOIN country c ON s.country = c.code ORDER BY 1;",
    )
    assert result.ok and result.columns == ("name", "title")
    assert result.rows[0] == ("Joe", "Chile")
    assert result.tables == {"singer", "country"}


@pytest.mark.parametrize(
    "sql",
    [
        f"{ENDLESS} SELECT count(*) FROM n",
        f"{ENDLESS} SELECT * FROM n ORDER BY i",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION SELECT i + 1 FROM n) SELECT count(*) FROM n",
        f"SELECT count(*) FROM singer{', singer' * 20}",
    ],
)
def test_endless_query_ends_at_its_deadline(singers: Path, sql: str) -> None:
    started = time.monotonic()
    result = execute(singers, sql, Limits(timeout_s=0.3))
    assert result.error_type == "timeout"
    assert time.monotonic() - started < 2
    assert execute(singers, "SELECT 1").ok


_QUADRATIC = "(SELECT hex(zeroblob(499990)) v, hex(zeroblob(249990)) || '1' w LIMIT 1)"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT length(trim(hex(zeroblob(124000)), replace(hex(zeroblob(10000)), '0', 'a') || '0'))",
        f"SELECT {' + '.join(['instr(v, w)'] * 40)} FROM {_QUADRATIC}",
        "WITH RECURSIVE n(i, v, w) AS (SELECT 1, v, w FROM "
        f"{_QUADRATIC} UNION ALL SELECT i + 1, v, w FROM n) SELECT sum({' + '.join(['instr(v, w)'] * 60)}) FROM n",
        f"SELECT {' + '.join(['length(replace(v, w, 1))'] * 300)} FROM {_QUADRATIC}",
        f"SELECT {' + '.join(['length(upper(v))'] * 300)} FROM {_QUADRATIC}",
        "SELECT " + " + ".join(["(v LIKE '%0" + "_" * 90 + "b')"] * 150) + f" FROM {_QUADRATIC}",
        f"SELECT {' + '.join(['v'] * 900)} FROM {_QUADRATIC}",
        "WITH w(x) AS (SELECT replace(hex(zeroblob(240000)), '0', '1 ')) SELECT "
        + " || ".join(["printf('" + "%*d" * 60 + "'" + ", x, 1" * 60 + ")"] * 4)
        + " FROM w",
    ],
)
def test_no_function_holds_a_worker_past_the_deadline(singers: Path, sql: str) -> None:
    # Processor time of this thread: what other processes do does not count.
    started = time.thread_time()
    result = execute(singers, sql, Limits(timeout_s=0.3, max_value_bytes=1_000_000))
    took = time.thread_time() - started
    assert took < 2.0
    assert result.ok == (result.error_type is None) and result.error_type in (
        None,
        "timeout",
        "too_large",
    )
    assert not result.ok or result.elapsed_s < 0.4
    assert execute(singers, "SELECT 1").ok


def test_a_query_that_repeats_itself_is_run_or_refused_in_time(singers: Path) -> None:
    for count in (355, 400, 500):
        result = execute(
            singers,
            "SELECT age FROM singer WHERE age > 1 UNION ALL ".join([""] * count) + "SELECT 1",
        )
        assert result.error_type == ("too_large" if count == 500 else None), (count, result.error)
    began = time.thread_time()
    assert execute(singers, "SELECT 1 UNION ALL " * 600_000).error_type == "too_large"
    assert time.thread_time() - began < 1


def test_what_ends_after_its_deadline_is_a_timeout(singers: Path) -> None:
    result = execute(singers, "SELECT 1", Limits(timeout_s=-1))
    assert (result.ok, result.error_type, result.rows) == (False, "timeout", [])


def test_replaced_functions_give_what_sqlites_own_give() -> None:
    own, replaced = sqlite3.connect(":memory:"), sqlite3.connect(":memory:")
    functions = Functions(lambda: False)
    functions.set_max_bytes(100_000)
    functions.install(replaced)
    chance = random.Random(3)

    def value() -> object:
        text = "aAbB%_*?[]^-é ÉßΩ😀\0\n01."
        return chance.choice(
            [
                lambda: None,
                lambda: chance.randint(-20, 20),
                lambda: chance.choice([0.5, -1.25, 1e20, 2.0, float("inf")]),
                lambda: "",
                lambda: b"",
                lambda: "".join(chance.choices(text, k=chance.randrange(9))),
                lambda: "".join(chance.choices("ab", k=chance.randrange(12))),
                lambda: bytes(chance.choices([0, 97, 98, 195, 169, 255], k=chance.randrange(6))),
            ]
        )()

    def answer(connection: sqlite3.Connection, name: str, values: list[object]) -> list[str]:
        call = f"{name}({', '.join('?' * len(values))})"
        try:
            return [
                repr(cell)
                for cell in connection.execute(
                    f"SELECT {call}, typeof({call})", values * 2
                ).fetchone()
            ]
        except sqlite3.Error:
            return ["error"]

    two = "trim ltrim rtrim instr like glob strftime".split()
    one = "hex quote upper lower".split()
    cases = [
        *((name, 2) for name in two),
        *((name, 1) for name in one),
        ("replace", 3),
        ("like", 3),
        ("printf", 3),
    ]
    for _ in range(6000):
        name, count = chance.choice(cases)
        values = [value() for _ in range(count)]
        assert answer(own, name, values) == answer(replaced, name, values), (name, values)
    own.close()
    replaced.close()


def test_ordinary_queries_on_long_or_broken_text_still_work(tmp_path: Path) -> None:
    path = tmp_path / "long.sqlite"
    columns = ", ".join(f"c{n}" for n in range(600))
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE t (id INTEGER, x TEXT);"
        "CREATE VIEW w AS SELECT id, trim(x, 'a') y, replace(x, 'a', 'b') z FROM t;"
        f"CREATE TABLE wide ({columns}, note TEXT DEFAULT '{'n' * 30_000}'); INSERT INTO wide (c599) VALUES (5);"
        "INSERT INTO t VALUES (1, printf('%.*c', 9000, 'a') || 'é'), (2, CAST(x'61ff62' AS TEXT))"
    )
    connection.close()
    assert execute(
        path, "SELECT length(x), instr(x, 'é'), upper(substr(x, 1, 2)) FROM t WHERE id = 1"
    ).rows == [(9001, 9001, "AA")]
    assert execute(path, "SELECT y, substr(z, 1, 2) FROM w WHERE id = 1").rows == [("é", "bb")]
    assert execute(path, "SELECT trim(x, 'a') FROM t WHERE id = 2").rows == [("b",)]
    assert execute(path, f"SELECT id FROM t WHERE id = 1 AND x LIKE '%{'a' * 400}%'").rows == [(1,)]
    assert execute(path, "SELECT c599, length(note) FROM wide").rows == [(5, 30_000)]
    assert execute(
        path, "SELECT length(printf('%.9000c|%s', 'x', 'y')), printf('%y'), printf('')"
    ).rows == [(9002, None, None)]
    assert execute(path, f"SELECT {', '.join(['id + 1 + id + 1'] * 400)} FROM t WHERE id = 1").ok
    assert execute(path, f"SELECT 1 WHERE 5 IN ({', '.join('5' * 4000)})").rows == [(1,)]
    assert execute(path, "SELECT 1 --" + "x" * 20_000).error_type == "too_large"


def test_one_wide_row_of_long_values_is_not_built(singers: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    script = f"""
from pathlib import Path
from harness_sql.sqlite.sandbox import execute
for count in (1900, 480, 100):
    sql = "WITH a AS MATERIALIZED (SELECT hex(zeroblob(120000)) || char(128512) v) SELECT " + ",".join("v" * count)
    print(execute({str(singers)!r}, sql + " FROM a").ok)
print(execute({str(singers)!r}, "SELECT printf(replace(hex(zeroblob(500)), '0', '%99999d'))").ok)
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    *answers, peak = done.stdout.split()
    assert answers == ["False"] * 4, done.stderr
    assert int(peak) < 300_000  # KiB


def test_rows_that_nothing_orders_can_be_asked_for_the_other_way_round(singers: Path) -> None:
    sql = "SELECT singer_id FROM singer"
    usual, other = Limits(max_rows=100), Limits(max_rows=100, reversed_rows=True)
    before = execute(singers, sql, usual).rows
    assert len(before) > 1 and execute(singers, sql, other).rows == before[::-1]
    assert execute(singers, f"{sql} ORDER BY 1", other).rows == sorted(before)
    assert execute(singers, sql, usual).rows == before


def test_endless_result_stops_at_the_row_cap(singers: Path) -> None:
    result = execute(singers, f"{ENDLESS} SELECT i FROM n", Limits(max_rows=3))
    assert result.rows == [(1,), (2,), (3,)] and result.truncated


def test_query_that_hoards_memory_is_ended_and_frees_it(singers: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    # In a process of its own: SQLite's heap limit is per process, and the peak is read from the system.
    script = f"""
from pathlib import Path
from harness_sql.sqlite.sandbox import Limits, execute
hoard = ("WITH RECURSIVE n(x) AS (SELECT zeroblob(200000) UNION ALL SELECT zeroblob(200000) FROM n) "
         "SELECT x FROM n ORDER BY random()")
print(execute({str(singers)!r}, hoard, Limits(timeout_s=20)).error_type)
print(execute({str(singers)!r}, "SELECT count(*) FROM singer").rows)
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line))
"""
    environment = {**os.environ, "HARNESS_SQLITE_HEAP_BYTES": str(64 << 20)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    kind, rows, peak = done.stdout.split("\n")[:3]
    assert (kind, rows) == ("memory", "[(4,)]"), done.stderr
    assert int(peak) < 150_000  # KiB


def test_huge_values_are_refused_not_built(singers: Path) -> None:
    started = time.monotonic()
    for sql in (
        "SELECT zeroblob(1000000000)",
        "SELECT printf('%.*c', 500000000, 'x')",
        "SELECT printf('%.*c', '500000000', 'x')",
        "SELECT format('%500000000d', 1)",
        "SELECT hex(zeroblob(200000))",
    ):
        assert execute(singers, sql).error_type == "too_large"
    assert time.monotonic() - started < 3
    assert execute(singers, "SELECT printf('%05.2f|%s', 2.5, 'a')").rows == [("02.50|a",)]


def test_huge_blob_in_the_database_does_not_hide_its_neighbours(tmp_path: Path) -> None:
    path = tmp_path / "blobs.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE photo (id INTEGER, name TEXT, data BLOB)")
    connection.execute("INSERT INTO photo VALUES (1, 'a', zeroblob(3000000))")
    connection.commit()
    connection.close()
    assert execute(path, "SELECT name FROM photo").rows == [("a",)]
    assert execute(path, "SELECT data FROM photo").error_type == "too_large"
    whole = execute(
        path,
        "SELECT data FROM photo",
        Limits(max_value_bytes=4_000_000, max_result_bytes=4_000_000),
    )
    assert whole.text.endswith("(blob of 3000000 bytes)")


def test_undecodable_text_is_read_without_its_bad_bytes(singers: Path) -> None:
    assert execute(singers, "SELECT CAST(x'ff41fe42' AS TEXT)").rows == [("AB",)]
    assert execute(singers, "SELECT name FROM singer WHERE singer_id = 1").rows == [("Joe",)]


@pytest.mark.parametrize(
    "sql",
    [
        "",
        ";",
        "-- nothing",
        "SELEC",
        "SELECT ?",
        "SELECT 1; SELECT 2",
        "SELECT '\0'",
        "SELECT '\ud800'",
        "SELECT nope",
    ],
)
def test_what_is_no_query_is_an_error_and_no_exception(singers: Path, sql: str) -> None:
    result = execute(singers, sql)
    assert (result.ok, result.error_type) == (False, "syntax")
    assert render(result).startswith("Error: ") and "\n" not in render(result)


def test_queries_about_the_schema_are_allowed(singers: Path) -> None:
    assert execute(singers, "PRAGMA table_info(singer)").ok
    assert execute(singers, "SELECT name FROM pragma_table_info('singer')").rows[0] == (
        "singer_id",
    )
    assert execute(singers, "SELECT value FROM json_each('[7]')").rows == [(7,)]


def test_missing_and_damaged_databases_are_told_apart(tmp_path: Path, singers: Path) -> None:
    assert execute(tmp_path / "no.sqlite", "SELECT 1").error_type == "missing_database"
    text = tmp_path / "text.sqlite"
    text.write_text("not a database" * 20)
    assert execute(text, "SELECT 1").error_type == "damaged_database"
    empty = tmp_path / "empty.sqlite"
    empty.touch()
    assert execute(empty, "SELECT 1").error_type == "damaged_database"
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(singers.read_bytes()[:-1000])
    assert execute(cut, "SELECT 1").error_type == "damaged_database"
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "cut.sqlite",
        "empty.sqlite",
        "singers",
        "text.sqlite",
    ]


def test_database_with_an_open_journal_is_not_read(singers: Path) -> None:
    log = singers.with_name(f"{singers.name}-wal")
    log.write_bytes(b"x" * 100)
    assert execute(singers, "SELECT 1").error_type == "damaged_database"


def test_a_database_in_wal_mode_is_read_once_it_is_closed_and_never_changed(singers: Path) -> None:
    writer = sqlite3.connect(singers)
    assert writer.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    writer.execute("INSERT INTO singer (name) VALUES ('Nina')")
    writer.commit()
    # The row is in the log alone, which only a program that may write can take in.
    during = execute(singers, "SELECT count(*) FROM singer")
    assert during.error_type == "damaged_database" and "not closed cleanly" in str(during.error)
    verdict = evaluate(singers, "SELECT count(*) FROM singer", "SELECT count(*) FROM singer")
    assert verdict.match is None and verdict.flags == ("database_damaged",)
    writer.close()
    files = sorted(path.name for path in singers.parent.iterdir())
    content = singers.read_bytes()
    assert execute(singers, "SELECT count(*) FROM singer").rows == [(5,)]
    assert evaluate(singers, "SELECT count(*) FROM singer", "SELECT 5").match is True
    assert sorted(path.name for path in singers.parent.iterdir()) == files
    assert singers.read_bytes() == content


def test_changed_file_is_opened_anew(singers: Path) -> None:
    assert execute(singers, "SELECT count(*) FROM singer").rows == [(4,)]
    other = singers.with_name("other.sqlite")
    connection = sqlite3.connect(other)
    connection.executescript("CREATE TABLE singer (x); INSERT INTO singer VALUES (1)")
    connection.close()
    os.replace(other, singers)
    assert execute(singers, "SELECT count(*) FROM singer").rows == [(1,)]


def test_read_only_folder_is_enough(singers: Path) -> None:
    singers.chmod(0o444)
    singers.parent.chmod(0o555)
    try:
        assert execute(singers, "SELECT count(*) FROM singer").ok
    finally:
        singers.parent.chmod(0o755)


def test_odd_file_names_are_opened(tmp_path: Path) -> None:
    path = tmp_path / "a b?c#d%41é.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript("CREATE TABLE t (x); INSERT INTO t VALUES (5)")
    connection.close()
    assert execute(path, "SELECT x FROM t").rows == [(5,)]
    assert execute(
        path.rename(os.fsdecode(bytes(tmp_path) + b"/\xff.sqlite")), "SELECT x FROM t"
    ).rows == [(5,)]


def test_many_threads_share_nothing(singers: Path) -> None:
    def one(number: int) -> object:
        if number % 7 == 0:
            return execute(
                singers, f"{ENDLESS} SELECT count(*) FROM n", Limits(timeout_s=0.05)
            ).error_type
        return execute(singers, f"SELECT name, {number} FROM singer WHERE singer_id = 2").rows

    with ThreadPoolExecutor(12) as pool:
        results = list(pool.map(one, range(140)))
    assert results == ["timeout" if n % 7 == 0 else [("Rose", n)] for n in range(140)]


def test_connections_of_ended_threads_are_closed(singers: Path) -> None:
    def open_files() -> int:
        return sum(
            os.path.realpath(f"/proc/self/fd/{fd}") == str(singers)
            for fd in os.listdir("/proc/self/fd")
        )

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    for _ in range(5):
        thread = threading.Thread(target=execute, args=(singers, "SELECT 1"))
        thread.start()
        thread.join()
    assert open_files() == 0


def _rows_of(path: str) -> list[tuple[object, ...]]:
    return execute(path, "SELECT count(*) FROM singer").rows


def test_forked_processes_open_their_own(singers: Path) -> None:
    execute(singers, "SELECT 1")
    signal.signal(
        signal.SIGTERM, signal.SIG_DFL
    )  # by which the pool ends them, and they have our handlers
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert pool.map(_rows_of, [str(singers)] * 9) == [[(4,)]] * 9


def test_text_of_a_result(singers: Path) -> None:
    assert (
        execute(singers, "SELECT name, age FROM singer WHERE age > 41").text
        == "name | age\nJoe | 52"
    )
    assert execute(singers, "SELECT name FROM singer WHERE 0").text == "no rows"
    assert execute(singers, "SELECT NULL AS x, 2.0 AS y, x'0102' AS z, 'a\nb' AS w").text == (
        "x | y | z | w\nNULL | 2.0 | x'0102' | a b"
    )
    assert execute(singers, "SELECT nope").text == "Error: no such column: nope"


def test_whatever_is_left_out_of_the_text_is_said(singers: Path) -> None:
    few = Limits(max_rows=2)
    assert render(execute(singers, "SELECT age FROM singer", few), few) == (
        "age\n52\n41\n(only the first 2 rows are shown, there are more)"
    )
    wide = execute(
        singers, "SELECT " + ", ".join(f"1 AS column_{n}" for n in range(60)) + " FROM singer"
    )
    assert len(wide.text) <= 400 and "of 60 columns are shown" in wide.text
    long = execute(singers, "SELECT printf('%.1000c', 'x') AS x FROM singer")
    assert len(long.text) <= 400 and "…" in long.text and "there are" not in long.text.split("…")[0]


@pytest.mark.parametrize("chars", [40, 120, 400])
def test_text_keeps_its_limit(singers: Path, chars: int) -> None:
    limits = Limits(max_rows=50, max_text_chars=chars)
    for sql in (
        "SELECT * FROM singer, country",
        "SELECT 'x' || name FROM singer",
        f"SELECT {'x' * 500}",
    ):
        assert len(render(execute(singers, sql, limits), limits)) <= chars


LEGITIMATE = """
CREATE TABLE person (
  id INTEGER PRIMARY KEY, name TEXT, doc TEXT, born TEXT,
  label TEXT AS (printf('%05d-%s', id, name)),
  city TEXT AS (json_extract(doc, '$.city')), town TEXT AS (doc ->> '$.city'),
  year TEXT AS (strftime('%Y', born)), loud TEXT AS (upper(name)) STORED
);
INSERT INTO person (id, name, doc, born) VALUES (1, 'Ann', '{"city": "Rome", "tags": [1, 2]}', '2001-02-03');
CREATE INDEX by_name ON person (lower(name));
CREATE INDEX by_city ON person (json_extract(doc, '$.city'));
CREATE VIEW counted AS SELECT printf('%d of 200000', id) AS text, json_object('name', name) AS object FROM person;
CREATE VIEW patched AS SELECT json_patch(doc, '{"city": null}') AS doc FROM person;
CREATE VIEW tags AS SELECT tag.value FROM person, json_each(person.doc, '$.tags') AS tag;
CREATE VIRTUAL TABLE page USING fts5(title, body);
INSERT INTO page VALUES ('one', 'the quick brown fox'), ('two', 'lazy dogs sleep');
CREATE VIEW foxes AS SELECT title FROM page WHERE page MATCH 'fox';
CREATE VIRTUAL TABLE box USING rtree(id, x0, x1);
INSERT INTO box VALUES (1, 0, 1), (2, 5, 6);
CREATE VIEW far AS SELECT id FROM box WHERE x0 > 2;
"""


@pytest.mark.parametrize("long", ["", " || substr(hex(zeroblob(30000)), 1, 0)"])
def test_search_boxes_views_and_generated_columns_work(tmp_path: Path, long: str) -> None:
    path = tmp_path / "legitimate.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(LEGITIMATE)
    connection.close()
    for sql, value in (
        ("SELECT label{} FROM person", "00001-Ann"),
        ("SELECT city || town{} FROM person", "RomeRome"),
        ("SELECT year || loud{} FROM person WHERE lower(name) = 'ann'", "2001ANN"),
        ("SELECT text{} FROM counted", "1 of 200000"),
        ("SELECT object{} FROM counted", '{"name":"Ann"}'),
        ("SELECT group_concat(value){} FROM tags", "1,2"),
        ("SELECT title{} FROM page WHERE page MATCH 'dogs' ORDER BY rank", "two"),
        (
            "SELECT highlight(page, 1, '<', '>'){} FROM page WHERE page MATCH 'quick'",
            "the <quick> brown fox",
        ),
        ("SELECT title{} FROM foxes", "one"),
        ("SELECT id{} FROM box WHERE x1 < 2", "1"),
        ("SELECT id{} FROM far", "2"),
        ("SELECT printf('%d of 200000', id){} FROM person", "1 of 200000"),
        ("SELECT printf('%*d%%200000d', 3, 200000){}", "200000%200000d"),
    ):
        result = execute(path, sql.format(long), Limits(max_value_bytes=1_000_000))
        assert result.ok and str(result.rows[0][0]) == value, (sql, result)
    assert execute(path, "SELECT doc FROM patched").rows == [('{"tags":[1,2]}',)]
    for sql in (
        "INSERT INTO page VALUES ('a', 'b')",
        "INSERT INTO page(page) VALUES ('optimize')",
        "DELETE FROM box",
    ):
        assert execute(path, sql).error_type == "denied"
    assert execute(path, "SELECT printf('%s %*d', 'a', '200000', 1)").error_type == "too_large"


def doubling(levels: int, part: str) -> str:
    names = ", ".join(f"c{level} AS ({part.format(f'c{level - 1}')})" for level in range(1, levels))
    return f"WITH c0 AS (SELECT age AS x FROM singer), {names} SELECT x FROM c{levels - 1}"


@pytest.mark.parametrize(
    "sql",
    [
        doubling(40, "SELECT 1 AS x FROM {0} a, {0} b"),
        doubling(5, "SELECT 1 AS x FROM " + ", ".join(f"{{0}} a{n}" for n in range(150))),
        doubling(40, "SELECT x + x AS x FROM {0}"),
        doubling(20, "SELECT x + x AS x FROM (SELECT x FROM {0})").replace("c0", '"C0"'),
        "SELECT {0} AS x FROM (SELECT {0} AS x FROM (SELECT age AS x FROM singer))".format(
            "max(" + ", ".join(["max(" + ", ".join(["x"] * 40) + ")"] * 40) + ")"
        ),
    ],
)
def test_parts_that_double_are_refused_before_they_are_compiled(singers: Path, sql: str) -> None:
    started = time.monotonic()
    result = execute(singers, sql, Limits(timeout_s=0.3))
    assert result.error_type == "too_large" and "repeats its own parts" in (result.error or "")
    assert time.monotonic() - started < 1


def test_long_chains_of_parts_are_no_doubling(singers: Path) -> None:
    assert execute(singers, doubling(30, "SELECT {0}.x FROM {0} AS {0} WHERE {0}.x > 0")).ok
    assert execute(singers, doubling(4, "SELECT a.x FROM {0} a JOIN {0} b ON a.x = b.x")).ok
    case = "CASE WHEN x > 50 THEN x - 1 WHEN x > 40 THEN x + 1 ELSE x END"
    assert execute(singers, doubling(5, f"SELECT {case} AS x FROM {{0}} GROUP BY x")).ok
    union = " UNION ALL ".join(f"SELECT {n} AS x" for n in range(200))
    assert execute(singers, f"SELECT count(*) FROM ({union})").rows == [(200,)]


# Queries that hog memory beside others: SQLite's heap is one for the process.

HOGS = """
import json, sys, threading, time
from collections import Counter
from harness_sql.sqlite.evaluator import evaluate
from harness_sql.sqlite.sandbox import HEAP_LIMIT_BYTES, Limits, execute

path, hold_s, rounds = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
golds = ["SELECT name, age FROM person ORDER BY age, name", "SELECT count(*) FROM person GROUP BY age % 7",
         "SELECT age % 10, max(name) FROM person GROUP BY 1", "SELECT name FROM person WHERE age > 500"]
verdicts = Counter()

def holding(rows):
    return (f"WITH RECURSIVE n(i, x) AS (SELECT 1, zeroblob(4000) UNION ALL "
            f"SELECT i + 1, zeroblob(4000) FROM n WHERE i < {rows}) SELECT count(a.x) FROM n a, n b, n c")

def most_rows():
    "How many one query can hold and be ended by its deadline only."
    low, high = 0, HEAP_LIMIT_BYTES // 4000
    while high - low > HEAP_LIMIT_BYTES // 5_000_000:
        rows = (low + high) // 2
        fits = execute(path, holding(rows), Limits(timeout_s=hold_s / 2)).error_type != "memory"
        low, high = (rows, high) if fits else (low, rows)
    return low

def hog(rows):
    execute(path, holding(rows), Limits(timeout_s=hold_s))

def judge(number):
    for case in range(150):
        gold = golds[case % len(golds)]
        verdict = evaluate(path, gold, f"{gold} -- {number}.{case}")
        verdicts[str(verdict.match)] += 1
        if verdict.match is not True:
            verdicts[verdict.reason] += 1

for gold in golds:
    evaluate(path, gold, gold)
full = most_rows()
for left in range(rounds):  # nobody knows how much the others must lack to fail: leave 12 to 60 rows
    threads = [threading.Thread(target=hog, args=(full - 12 - left * 48 // rounds,))]
    threads[0].start()
    time.sleep(hold_s / 2)
    threads += [threading.Thread(target=hog, args=(full * 2,)) for _ in range(5)]
    threads += [threading.Thread(target=judge, args=(2 * left + number,)) for number in range(2)]
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join()
print(json.dumps(verdicts))
"""

PEAK = """
import random, sys, threading, time
from pathlib import Path
from harness_sql.sqlite.sandbox import Limits, execute

end = time.monotonic() + 4

def hog(number):
    chance = random.Random(number)
    while time.monotonic() < end:
        size = chance.choice([900, 4000])
        rows = chance.choice([150, 200, 250, 300, 400, 470, 600]) * 1_000_000 // size
        part = (f"WITH RECURSIVE n(i, x) AS (SELECT 1, zeroblob({size}) UNION ALL "
                f"SELECT i + 1, zeroblob({size}) FROM n WHERE i < {rows}) ")
        last = chance.choice(["SELECT count(a.x) FROM n a, n b, n c", "SELECT i FROM n ORDER BY x, -i"])
        execute(sys.argv[1], part + last, Limits(timeout_s=2))

threads = [threading.Thread(target=hog, args=(number,)) for number in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line))
"""


@pytest.fixture
def people(tmp_path: Path) -> Path:
    path = tmp_path / "people.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE person (name TEXT, age INTEGER)")
    connection.executemany(
        "INSERT INTO person VALUES (?, ?)", [(f"name {n}", n) for n in range(1500)]
    )
    connection.commit()
    connection.close()
    return path


def in_a_process(script: str, *arguments: object, heap_bytes: int = 1 << 29) -> str:
    """What a script prints in a process of its own: SQLite's heap and the peak of memory are a process's."""
    environment = {**os.environ, "HARNESS_SQLITE_HEAP_BYTES": str(heap_bytes)}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0 and not done.stderr, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_gold_is_right_beside_queries_that_hog_memory(people: Path) -> None:
    assert json.loads(in_a_process(HOGS, people, 2, 4, heap_bytes=24 << 20)) == {"True": 1200}


@pytest.mark.slow
def test_hogs_in_six_threads_stay_below_a_gigabyte(people: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    assert int(in_a_process(PEAK, people)) < 1_000_000  # KiB
