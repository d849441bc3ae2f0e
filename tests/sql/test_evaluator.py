from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness_sql.sqlite import evaluator
from harness_sql.sqlite.evaluator import FLAGS, evaluate, forget, gold_result
from harness_sql.sqlite.functions import CHANGING_FUNCTIONS
from harness_sql.sqlite.gold import GoldCache
from harness_sql.sqlite.kept import Kept

NAMES = "SELECT name FROM singer"
EMPTY = "SELECT name FROM singer WHERE age > 100"


@pytest.mark.parametrize(
    ("gold", "pred", "match"),
    [
        # column order is free, with and without ORDER BY
        ("SELECT name, age FROM singer", "SELECT age, name FROM singer", True),
        (
            "SELECT name, age FROM singer ORDER BY age",
            "SELECT age, name FROM singer ORDER BY age",
            True,
        ),
        # row order counts only if gold has ORDER BY
        (NAMES, f"{NAMES} ORDER BY name DESC", True),
        (f"{NAMES} ORDER BY age", f"{NAMES} ORDER BY age DESC", False),
        # even where the ORDER BY is inside
        (
            "SELECT name FROM (SELECT name FROM singer ORDER BY age)",
            f"{NAMES} ORDER BY age DESC",
            False,
        ),
        # results are multisets
        (
            "SELECT country FROM singer WHERE age < 45",
            "SELECT country FROM singer WHERE age = 41",
            False,
        ),
        (NAMES, f"{NAMES} UNION SELECT name FROM singer", False),
        # values are compared as Python values
        ("SELECT count(*) FROM singer", "SELECT 4.0", True),
        ("SELECT age FROM singer WHERE singer_id = 1", "SELECT '52'", False),
        ("SELECT NULL", "SELECT NULL", True),
        # values must stay in their rows
        ("SELECT 1, 2 UNION ALL SELECT 3, 4", "SELECT 1, 4 UNION ALL SELECT 3, 2", False),
        # the prediction fails
        (NAMES, "SELECT nothing FROM singer", False),
        (NAMES, "this is no SQL", False),
        # spaces inside operators
        (
            "SELECT name FROM singer WHERE age >= 41",
            "SELECT name FROM singer WHERE age > = 41",
            True,
        ),
        ("SELECT YEAR(CURDATE())", "SELECT 2020", None),
    ],
)
def test_verdicts_of_the_reference(singers: Path, gold: str, pred: str, match: bool | None) -> None:
    if match is None:  # replaced by 2020 before it is executed
        match = True
    assert evaluate(singers, gold, pred).match is match


def test_distinct_is_dropped_unless_kept(singers: Path) -> None:
    distinct = "SELECT DISTINCT name FROM singer"
    assert evaluate(singers, NAMES, distinct).match is True
    assert (
        evaluate(
            singers, "SELECT count(DISTINCT name) FROM singer", "SELECT count(name) FROM singer"
        ).match
        is True
    )
    assert evaluate(singers, NAMES, distinct, keep_distinct=True).match is False
    assert evaluate(singers, "SELECT 'distinct'", "SELECT 'DISTINCT'").match is False
    assert evaluate(singers, "SELECT 1 IS NOT DISTINCT FROM 1", "SELECT 1").match is True


def test_only_the_first_statement_counts(singers: Path) -> None:
    first = evaluate(singers, NAMES, f"{NAMES}; DROP TABLE singer")
    assert (first.match, first.flags) == (True, ("later_statements_ignored",))
    assert evaluate(singers, NAMES, f"SELECT 1; {NAMES}").match is False
    assert evaluate(singers, NAMES, f"{NAMES}; SELECT 1", keep_distinct=True).match is False
    assert evaluate(singers, NAMES, f"{NAMES} ; -- done").flags == ()
    assert evaluate(singers, "SELECT 'a;b'", "SELECT 'a;b';").flags == ()


def test_int_and_float_that_are_equal_match_in_any_row(singers: Path) -> None:
    verdict = evaluate(
        singers, "SELECT age, age * 1.0 FROM singer", "SELECT age * 1.0, age FROM singer"
    )
    assert verdict.match is True
    verdict = evaluate(singers, "SELECT 1, 1.5", "SELECT 1.0, 1.5")
    assert (verdict.match, verdict.flags) == (True, ("int_float",))


@pytest.mark.parametrize(
    ("gold", "pred", "flags"),
    [
        ("SELECT 0.1 + 0.2", "SELECT 0.3", ("float_digits",)),
        ("SELECT 1.0 / 3, 'a'", "SELECT 'a', 0.3333333333", ("float_digits",)),
        ("SELECT 3", "SELECT 2.9999999999", ("float_digits",)),
        ("SELECT 0", "SELECT 0.1 + 0.2 - 0.3", ("float_digits",)),
        ("SELECT 0.5 UNION SELECT 2.0", "SELECT 2.0000000001 UNION SELECT 0.5", ("float_digits",)),
        ("SELECT 0.333", "SELECT 1.0 / 3", ()),
        ("SELECT 0.3, 1", "SELECT 0.1 + 0.2, 2", ()),
        ("SELECT 9007199254740993", "SELECT 9007199254740992", ()),
        ("SELECT '0.3'", "SELECT 0.1 + 0.2", ()),
        ("SELECT 9e999", "SELECT 1e308", ()),
    ],
)
def test_floats_that_differ_beyond_nine_digits_are_wrong_and_flagged(
    singers: Path, gold: str, pred: str, flags: tuple[str, ...]
) -> None:
    verdict = evaluate(singers, gold, pred)
    assert (verdict.match, verdict.flags) == (False, flags)


def test_empty_gold_asks_for_more_than_emptiness(singers: Path) -> None:
    assert evaluate(singers, EMPTY, "SELECT name FROM singer WHERE age > 99").flags == (
        "empty_gold",
    )
    for pred in (
        "SELECT 1 WHERE 0",
        "SELECT code FROM country WHERE 0",
        "SELECT name, age FROM singer WHERE 0",
    ):
        verdict = evaluate(singers, EMPTY, pred)
        assert (verdict.match, verdict.flags) == (False, ("empty_gold", "empty_gold_refused"))
    assert evaluate(singers, EMPTY, NAMES).match is False
    assert evaluate(singers, NAMES, EMPTY).match is False


def test_gold_without_a_result_is_unscored(singers: Path, tmp_path: Path) -> None:
    assert evaluate(singers, "SELECT nothing FROM singer", NAMES).flags == ("gold_failed",)
    assert evaluate(singers, "", NAMES).flags == ("gold_failed",)
    assert evaluate(singers, "DELETE FROM singer", NAMES).flags == ("gold_failed",)
    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    )
    assert evaluate(singers, endless, NAMES, timeout_s=0.1).flags == ("gold_timeout",)
    assert evaluate(tmp_path / "no.sqlite", NAMES, NAMES).flags == ("database_missing",)
    assert evaluate(tmp_path / "no folder" / "x.sqlite", NAMES, NAMES).flags == (
        "database_missing",
    )
    (tmp_path / "empty folder").mkdir()
    assert evaluate(tmp_path / "empty folder", NAMES, NAMES).flags == ("database_missing",)
    (tmp_path / "bad.sqlite").write_bytes(singers.read_bytes()[:5000])
    assert evaluate(tmp_path / "bad.sqlite", NAMES, NAMES).flags == ("database_damaged",)
    for verdict in (evaluate(singers, "x", NAMES), evaluate(tmp_path / "no.sqlite", NAMES, NAMES)):
        assert verdict.match is None


def test_prediction_that_never_ends_is_wrong_not_unscored(singers: Path) -> None:
    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    )
    verdict = evaluate(singers, NAMES, endless, timeout_s=0.1)
    assert (verdict.match, verdict.flags) == (False, ("prediction_timeout",))


def test_all_databases_of_a_test_suite_must_agree(singers: Path) -> None:
    older = "SELECT name FROM singer WHERE age > 50"
    first = "SELECT name FROM singer WHERE singer_id = 1"
    assert evaluate(singers, older, first).match is True
    second = singers.with_name("singers_2.sqlite")
    second.write_bytes(singers.read_bytes())
    connection = sqlite3.connect(second)
    connection.execute("UPDATE singer SET age = 60 WHERE singer_id = 2")
    connection.commit()
    connection.close()
    assert evaluate(singers, older, first).match is False
    assert evaluate(singers.parent, older, first).match is False
    assert evaluate(singers, older, "SELECT name FROM singer WHERE age >= 51").match is True


def test_empty_on_one_database_of_several_is_told_apart_by_the_others(singers: Path) -> None:
    second = singers.with_name("singers_2.sqlite")
    second.write_bytes(singers.read_bytes())
    connection = sqlite3.connect(second)
    connection.execute("UPDATE singer SET age = 200")
    connection.commit()
    connection.close()
    verdict = evaluate(
        singers, EMPTY, "SELECT n FROM (SELECT name AS n FROM singer WHERE age > 150)"
    )
    assert (verdict.match, verdict.flags) == (True, ())


def test_unrelated_files_beside_the_database_do_not_count(singers: Path) -> None:
    connection = sqlite3.connect(singers.with_name("other.sqlite"))
    connection.executescript("CREATE TABLE other (x)")
    connection.close()
    assert evaluate(singers, NAMES, NAMES).match is True


def test_plug_value_takes_values_from_gold(singers: Path) -> None:
    gold = "SELECT name FROM singer WHERE country = 'PE' AND age > 30"
    pred = 'SELECT name FROM singer WHERE age > -7 AND country = "Peru"'
    assert evaluate(singers, gold, pred).match is False
    assert evaluate(singers, gold, pred, plug_value=True).match is True
    assert (
        evaluate(singers, gold, "SELECT age FROM singer WHERE age > 1", plug_value=True).match
        is False
    )
    assert (
        evaluate(singers, NAMES, "SELECT name FROM singer WHERE age > 90", plug_value=True).match
        is False
    )


def test_plug_value_with_many_values_is_capped_and_says_so(singers: Path) -> None:
    numbers = ", ".join(map(str, range(12)))
    gold, pred = (
        f"SELECT name FROM singer WHERE age IN ({numbers}, 52)",
        f"SELECT age IN ({numbers}) FROM singer",
    )
    verdict = evaluate(singers, gold, pred, plug_value=True)
    assert verdict.match is False and "plug_value_capped" in verdict.flags


def test_long_fillings_keep_to_the_deadline_too(singers: Path) -> None:
    gold = "SELECT name FROM singer WHERE age > 25 AND age > 13"
    pred = f"SELECT age FROM singer WHERE age IN ({','.join(['1-1'] * 4900)})"
    began = time.thread_time()
    verdict = evaluate(singers, gold, pred, plug_value=True, timeout_s=0.5)
    assert (verdict.match, verdict.flags) == (False, ("plug_value_capped",))
    assert time.thread_time() - began < 1.5


def test_names_that_end_in_digits_are_no_values(singers: Path) -> None:
    """The reference takes `z0` for one, but not `t0`."""
    gold = "SELECT name FROM singer WHERE age > 30"
    assert (
        evaluate(singers, gold, "SELECT z0 FROM singer WHERE age > 1", plug_value=True).match
        is False
    )
    pred = "SELECT z0 . name FROM singer AS z0 WHERE z0 . age > 1"
    assert evaluate(singers, gold, pred, plug_value=True).match is True


def test_every_flag_is_documented() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "evaluator.md").read_text(
        encoding="utf-8"
    )
    assert [flag for flag in FLAGS if f"`{flag}`" not in page] == []


def test_changed_database_is_judged_anew(singers: Path) -> None:
    pred = "SELECT name FROM singer WHERE age < 60"
    assert evaluate(singers, NAMES, pred).match is True
    connection = sqlite3.connect(singers)
    connection.execute("UPDATE singer SET age = 70 WHERE singer_id = 1")
    connection.commit()
    connection.close()
    assert evaluate(singers, NAMES, pred).match is False


def test_gold_results_are_shared_through_a_folder(singers: Path, tmp_path: Path) -> None:
    gold = "SELECT name, score, x'00ff', NULL, 9e999 FROM singer"
    folder = tmp_path / "kept"
    assert evaluate(singers, gold, gold, cache=GoldCache(folder)).match is True
    (file,) = folder.rglob("*.json")
    assert evaluate(singers, gold, f"{gold} LIMIT 9", cache=GoldCache(folder)).match is True
    file.write_text("damaged")
    assert evaluate(singers, gold, f"{gold} LIMIT 8", cache=GoldCache(folder)).match is True


def test_gold_that_changes_is_not_kept(singers: Path, tmp_path: Path) -> None:
    evaluate(singers, "SELECT random()", NAMES, cache=GoldCache(tmp_path / "kept"))
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    ("query", "asks_for"),
    [
        ("SELECT strftime('%s')", {"strftime() of now"}),
        ("SELECT strftime('%s', 'n' || 'ow')", {"'now'"}),
        ("SELECT date(x'4e4f57')", {"'now'"}),
        ("SELECT datetime(lower('NOW') || char(0) || 'x')", {"'now'"}),
        ("SELECT date(word) FROM (SELECT substr('know', 2) AS word)", {"'now'"}),
        ("SELECT julianday()", {"julianday() of now"}),
        ("SELECT time('now', '+1 day')", {"'now'"}),
        ("SELECT CURRENT_DATE, randomblob(3)", {"CURRENT_DATE", "randomblob()"}),
        ("SELECT name FROM moment", {"strftime() of now"}),
        ("SELECT date('now', name) FROM singer", {"'now'"}),
        ("SELECT trim(date('now'), '2')", {"'now'"}),
        ("SELECT date('2020-01-01'), 'now', 'random()' AS current_date", set()),
        ("SELECT strftime('%Y', name), date(age) FROM singer", set()),
        ("SELECT trim(name, 'x'), julianday(age) FROM singer", set()),
        ("SELECT 1 AS random, 2 AS now FROM singer", set()),
    ],
)
def test_only_what_asks_for_the_time_or_for_luck_is_not_kept(
    singers: Path, query: str, asks_for: set[str]
) -> None:
    with sqlite3.connect(singers) as connection:
        connection.execute("CREATE VIEW moment AS SELECT strftime('%s') AS name")
    connection.close()
    assert gold_result(singers, query).changing == asks_for
    forget()
    evaluate(singers, NAMES, query)
    assert bool(evaluator._verdicts.bytes) is not bool(asks_for)
    forget()
    evaluate(singers, query, NAMES)
    assert bool(evaluator._verdicts.bytes) is not bool(asks_for)


def test_every_function_of_sqlite_that_is_not_deterministic_is_known() -> None:
    connection = sqlite3.connect(":memory:")
    deterministic = 0x800
    found = {
        name
        for name, kind, flags in connection.execute(
            "SELECT name, type, flags FROM pragma_function_list"
        )
        if kind == "s" and not flags & deterministic
    }
    connection.close()
    # Each depends on the connection or the library alone, is for indexes, or is refused.
    steady = {
        *("changes", "last_insert_rowid", "total_changes", "load_extension", "fts3_tokenizer"),
        *("sqlite_compileoption_get", "sqlite_compileoption_used", "sqlite_source_id"),
        *("sqlite_version", "fts5", "fts5_source_id", "match", "matchinfo", "offsets"),
        *("optimize", "snippet", "highlight", "bm25", "rtreecheck", "rtreedepth", "rtreenode"),
    }
    assert found - steady == set(CHANGING_FUNCTIONS)


def test_gold_result_says_what_gold_gives(singers: Path) -> None:
    assert gold_result(singers, "SELECT DISTINCT name FROM singer").rows == [
        ("Joe",),
        ("Rose",),
        ("Tribal",),
        ("Rose",),
    ]
    assert gold_result(singers, "SELECT x").error == "no such column: x"


@pytest.mark.slow
def test_prediction_that_hoards_memory_is_wrong_not_unscored(singers: Path) -> None:
    hoard = (
        "WITH RECURSIVE n(x) AS (SELECT zeroblob(900000) UNION ALL SELECT zeroblob(900000) FROM n) "
        "SELECT x FROM n ORDER BY random()"
    )
    verdict = evaluate(singers, NAMES, hoard, timeout_s=30)
    assert verdict.match is False and verdict.flags[0] in (
        "prediction_too_large",
        "prediction_timeout",
    )


def test_current_year_may_be_followed_by_a_word(singers: Path) -> None:
    assert evaluate(singers, "SELECT year ( curdate() ) AS y", "SELECT 2020").match is True


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


def test_one_deadline_for_all_fillings_and_databases(singers: Path) -> None:
    gold = "SELECT name FROM singer WHERE age > 1 AND age < 90 AND score > 0.5"
    crowd = ", ".join(f"singer s{number}" for number in range(11))
    slow = (
        f"SELECT age FROM singer WHERE (SELECT count(*) FROM {crowd}) > 5 AND age > 7 AND age < 8"
    )
    started = time.monotonic()
    verdict = evaluate(singers, gold, slow, plug_value=True, timeout_s=1.0)
    assert time.monotonic() - started < 3
    assert verdict.match is False and "plug_value_capped" in verdict.flags
    for number in range(4):
        singers.with_name(f"more_{number}.sqlite").write_bytes(singers.read_bytes())
    started = time.monotonic()
    assert evaluate(singers, NAMES, ENDLESS, timeout_s=0.5).flags == ("prediction_timeout",)
    assert time.monotonic() - started < 2


def test_reading_the_fillings_counts_against_the_deadline(singers: Path) -> None:
    gold = "SELECT name FROM singer WHERE age IN (41, 25, 3)"
    began = time.thread_time()
    verdict = evaluate(
        singers,
        gold,
        "SELECT age FROM singer WHERE age = 1 UNION " * 400,
        plug_value=True,
        timeout_s=0.5,
    )
    assert (verdict.match, verdict.flags) == (False, ("plug_value_capped",))
    assert time.thread_time() - began < 2


def test_gold_has_half_of_the_deadline(singers: Path) -> None:
    started = time.monotonic()
    assert evaluate(singers, ENDLESS, NAMES, timeout_s=1.0).flags == ("gold_timeout",)
    assert time.monotonic() - started < 0.9


def test_a_group_with_one_endless_answer_waits_for_it_once(singers: Path) -> None:
    started = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        verdicts = list(
            pool.map(lambda _: evaluate(singers, NAMES, ENDLESS, timeout_s=1.0), range(8))
        )
    verdicts.append(evaluate(singers, NAMES, ENDLESS, timeout_s=1.0))
    assert {(verdict.match, verdict.flags) for verdict in verdicts} == {
        (False, ("prediction_timeout",))
    }
    assert time.monotonic() - started < 2


def test_prediction_that_is_too_long_is_not_looked_at(singers: Path) -> None:
    started = time.monotonic()
    verdict = evaluate(singers, NAMES, "(" * 20_000_000)
    assert (verdict.match, verdict.flags) == (False, ("prediction_too_long",))
    assert time.monotonic() - started < 1
    assert evaluate(singers, NAMES, NAMES + " " * (20_000 - len(NAMES))).match is True
    assert evaluate(singers, "SELECT broken", "(" * 30_000).flags == ("gold_failed",)


@pytest.mark.slow
def test_verdicts_kept_are_bounded_in_bytes(singers: Path) -> None:
    for number in range(1000):
        evaluate(singers, NAMES, f"SELECT {number} -- " + "\N{GRINNING FACE}" * 100_000)
    assert evaluator._verdicts.bytes <= 1 << 26
    kept: Kept[int, str] = Kept(1000)
    for key in range(100):
        kept.put(key, "value", 90)
        assert kept.get(0) == ("value" if key < 20 else kept.get(0))
    assert kept.bytes <= 1000 and kept.get(0) == "value" and kept.get(1) is None
    kept.put(200, "large", 2000)
    assert kept.get(200) is None and kept.get(0) == "value"


def test_verdict_for_want_of_memory_is_not_kept(singers: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("needs a heap of its own")
    script = f"""
from harness_sql.sqlite import evaluator
hoard = ("WITH RECURSIVE n(i, x) AS (SELECT 1, zeroblob(4000) UNION ALL SELECT i + 1, zeroblob(4000) FROM n) "
         "SELECT count(a.x) FROM n a, n b")
print(evaluator.evaluate({str(singers)!r}, "SELECT name FROM singer", hoard).flags, evaluator._verdicts.bytes)
print(evaluator.evaluate({str(singers)!r}, hoard, "SELECT name FROM singer").flags, evaluator._verdicts.bytes)
"""
    environment = {**os.environ, "HARNESS_SQLITE_HEAP_BYTES": str(8 << 20)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == ["('prediction_too_large',) 0", "('out_of_resources',) 0"]


def test_cost_of_dropping_distinct_is_flagged(singers: Path) -> None:
    distinct = "SELECT DISTINCT name FROM singer"
    assert evaluate(singers, NAMES, distinct).flags == ("distinct_paid",)
    denied = evaluate(
        singers,
        "SELECT DISTINCT name FROM singer WHERE age = 41",
        "SELECT name FROM singer LIMIT 1 OFFSET 1",
    )
    assert (denied.match, denied.flags) == (False, ("distinct_denied",))
    assert evaluate(singers, distinct, distinct).flags == ()
    assert evaluate(singers, NAMES, distinct, keep_distinct=True).flags == ()
