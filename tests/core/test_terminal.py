"""Text of others on a terminal: shown, never obeyed."""

from __future__ import annotations

import csv
import json
import logging
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.api.console import PlainConsole
from harness.cli import _PlainFormatter
from harness.cli.common import emit_json, fitting, table
from harness.cli.dev import tree
from harness.records import Attempt, ToolCall, Verdict
from harness.util.formatting import printable, shortened, without_middle

REPO = Path(__file__).resolve().parents[2]
Command = Callable[..., subprocess.CompletedProcess[str]]
HOSTILE = "\x1b]0;owned\x07\x1b[2J\rgone\x9b31m\u202etxt.exe [/red] :smile:"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\rgone\x9b31m\u202etxt.exe [/red] :smile:"
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


def test_consoles_show_text_and_tables_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    shown = table("head", title=HOSTILE)
    shown.add_row(HOSTILE)
    for console in (PlainConsole(width=200), PlainConsole(width=200, stderr=True)):
        console.print(HOSTILE)
        console.print(shown)
        console.out(HOSTILE)
    output = capsys.readouterr()
    for text in output:
        assert not OBEYED.search(text) and text.count(SHOWN) == 4, text


@pytest.mark.parametrize("columns", ["0", "00"])
def test_no_columns_at_all_hide_no_result(
    columns: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    arguments = ("runs", "list", "--runs-dir", REPO / "results")
    usual, narrow = command(*arguments), command(*arguments, COLUMNS=columns)
    assert usual.stdout.count("finished") > 1
    assert (narrow.returncode, narrow.stdout) == (0, usual.stdout)
    assert command("runs", "list", "--runs-dir", tmp_path, COLUMNS=columns).stderr.startswith(
        "no runs under"
    )


def test_a_tree_of_an_attempt_shows_what_the_model_said(capsys: pytest.CaptureFixture[str]) -> None:
    call = ToolCall(HOSTILE, {"sql": HOSTILE}, HOSTILE, True, 0.0, 0.1)
    attempt = Attempt("ro-1", "at-1", "agent_error", HOSTILE, HOSTILE, (), (), (call,), 0.0, 1.0)
    wide = PlainConsole(width=200)
    wide.print(
        tree(attempt, Verdict(0.7, HOSTILE, {HOSTILE: 0.4}, (HOSTILE,), {HOSTILE: 0.2})),
        markup=True,
    )
    output = capsys.readouterr().out
    assert not OBEYED.search(output) and output.count(SHOWN) == 8, output
    assert "[bold]" not in output


def test_json_means_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    emit_json({"text": HOSTILE})
    output = capsys.readouterr().out
    assert not OBEYED.search(output) and json.loads(output) == {"text": HOSTILE}


def test_a_log_line_is_shown() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, HOSTILE, None, None)
    assert _PlainFormatter("%(message)s").format(record) == SHOWN
    assert printable("a\tb\nçé😀") == "a\tb\nçé😀"


def test_questions_and_databases_of_others_are_checked_and_named(
    tmp_path: Path, command: Command
) -> None:
    connection = sqlite3.connect(tmp_path / "shop.sqlite")
    connection.executescript("CREATE TABLE t (a)")
    connection.close()
    file = tmp_path / "questions.csv"
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["question", "query", "database", "id"])
        writer.writerows(
            [
                [f"q{n}", f"SELECT '{HOSTILE}' FROM nowhere{HOSTILE}", "shop", f"{n}"]
                for n in range(4)
            ]
        )
        writer.writerow(["q", "SELECT 1", HOSTILE, "5"])
    done = command("data", "check", file)
    assert done.returncode == 1 and not OBEYED.search(done.stdout + done.stderr), done
    assert r"\x1b]0;owned\x07" in done.stdout
    done = command("data", "check", file, "--json")
    assert not OBEYED.search(done.stdout) and json.loads(done.stdout)["ok"] is False
    done = command(
        "score",
        "--db",
        tmp_path / "shop.sqlite",
        "--gold",
        "SELECT 1",
        "--pred",
        f"SELECT {HOSTILE}",
    )
    assert not OBEYED.search(done.stdout + done.stderr) and r"\x1b" in done.stdout
    done = command("runs", "show", f"no{HOSTILE}")
    assert done.returncode == 2 and not OBEYED.search(done.stderr) and SHOWN in done.stderr


def test_no_command_prints_past_what_escapes() -> None:
    writes = re.compile(
        r"typer\.echo|click\.echo|^\s*print\(|sys\.std(out|err)\.write|[^n]Console\("
    )
    found = [
        f"{file.name}: {line.strip()}"
        for file in sorted((REPO / "harness" / "cli").glob("*.py"))
        for line in file.read_text(encoding="utf-8").splitlines()
        if writes.search(line) and "printable" not in line
    ]
    assert found == ['__init__.py: sys.stdout.write(f"harness {harness.__version__}\\n")'], found


@pytest.mark.slow
def test_a_reader_that_stops_reading_is_no_failure() -> None:
    command = f"{sys.executable} -m harness compare results/studies/frameworks | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0 and not done.stderr and done.stdout.count("\n") == 1


def test_long_texts_are_shortened() -> None:
    assert [shortened("abcdef", chars) for chars in (6, 5, 1)] == ["abcdef", "ab...", "..."]
    assert shortened("abcdef", 5, "…") == "abcd…"
    assert shortened("abcdef", 5, "…", kept=5) == "abcde…"
    assert [without_middle("abcdef", chars) for chars in (6, 5, 2)] == ["abcdef", "ab..f", ".."]
    assert without_middle("abcdef", 5, "...", kept=4) == "ab...ef"


def test_columns_that_do_not_fit_are_left_out() -> None:
    widths = {"a": 5, "b": 8, "c": 2}
    assert fitting(widths, widths, 15) == (["a", "b", "c"], 0)
    assert fitting(widths, widths, 9) == (["a", "c"], 2)
    assert fitting(widths, widths, 9, in_order=True) == (["a"], 4)
    assert fitting(widths, widths, 9, {"a": 5}) == (["b"], 1)
