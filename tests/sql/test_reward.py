from __future__ import annotations

import asyncio
import json
from pathlib import Path

from typer.testing import CliRunner

from harness.errors import UserError
from harness.plugins import reward_spec, reward_version
from harness.records import Attempt, Task, Verdict
from harness_sql.cli import reward as reward_commands
from harness_sql.cli import score as score_commands
from harness_sql.rewards.audit import audit
from harness_sql.rewards.execution_accuracy import ExecutionAccuracy
from harness_sql.sqlite.environment import DATABASE
from harness_sql.testing import SQLRewardContract


class TestContract(SQLRewardContract):
    reward = "execution_accuracy"


def task(db_path: Path, gold: str) -> Task:
    return Task("t", "test", "val", "?", gold, "singers", data={DATABASE: str(db_path)})


def attempt(answer: str | None) -> Attempt:
    return Attempt("r", "a", "ok", "", answer, (), (), (), 0.0, 0.0)


def score(reward: ExecutionAccuracy, task: Task, attempt: Attempt) -> Verdict:
    return asyncio.run(reward.score(task, attempt))


def test_reward_is_one_zero_or_unscored(singers: Path) -> None:
    reward = ExecutionAccuracy()
    gold = task(singers, "SELECT name FROM singer")
    assert score(reward, gold, attempt("SELECT name FROM singer ORDER BY 1")).value == 1.0
    assert reward_version(reward_spec("execution_accuracy")) == "execution_accuracy/2"
    assert score(reward, gold, attempt("SELECT age FROM singer")).value == 0.0
    assert score(reward, gold, attempt(None)).flags == ("no_query",)
    assert score(reward, task(singers, "SELECT broken"), attempt("SELECT 1")).value is None


def test_options_reach_the_evaluator(singers: Path, tmp_path: Path) -> None:
    reward = ExecutionAccuracy(
        keep_distinct=True, plug_value=True, timeout_s=3, cache_folder=tmp_path / "gold"
    )
    gold = task(singers, "SELECT name FROM singer WHERE age > 30")
    assert (
        score(reward, gold, attempt("SELECT DISTINCT name FROM singer WHERE age > 30")).value == 0.0
    )
    assert score(reward, gold, attempt("SELECT name FROM singer WHERE age > 99")).value == 1.0
    assert list((tmp_path / "gold").rglob("*.json"))


def test_every_attack_ends_as_documented_and_changes_nothing() -> None:
    rows = audit(timeout_s=0.3)
    assert len(rows) > 30
    assert [(row.attack, row.value, row.reason) for row in rows if not row.holds] == []


def test_audit_command_reports_json() -> None:
    done = CliRunner().invoke(reward_commands.app, ["audit", "--json"])
    assert done.exit_code == 0
    assert all(row["holds"] for row in json.loads(done.stdout))


def run_score(*arguments: str) -> tuple[int, str, BaseException | None]:
    done = CliRunner().invoke(score_commands.app, list(arguments))
    return done.exit_code, done.stdout, done.exception


def test_score_command(singers: Path) -> None:
    code, out, _ = run_score(
        "--db",
        str(singers),
        "--gold",
        "SELECT 4",
        "--pred",
        "SELECT count(*) FROM singer",
        "--json",
    )
    assert code == 0
    assert json.loads(out) == {
        "reward": 1.0, "match": True, "reason": "same result", "flags": [], "version": "execution_accuracy/2",
    }  # fmt: skip
    code, out, _ = run_score("--db", str(singers), "--gold", "SELECT 4", "--pred", "SELECT 5")
    assert (code, out) == (0, "0: other values than gold's\n")
    code, out, _ = run_score("--db", str(singers), "--gold", "SELECT nope", "--pred", "SELECT 5")
    assert code == 1 and out.startswith("unscored: ") and "[gold_failed]" in out
    code, out, _ = run_score(
        "--db", str(singers), "--gold", "SELECT nope", "--pred", "SELECT 5", "--json"
    )
    assert code == 1 and json.loads(out)["reward"] is None


def test_score_command_without_a_database_is_a_user_error(tmp_path: Path) -> None:
    code, out, error = run_score(
        "--db", str(tmp_path / "no.sqlite"), "--gold", "SELECT 1", "--pred", "SELECT 1", "--json"
    )
    assert code != 0 and isinstance(error, UserError)
    assert json.loads(out)["match"] is None


def test_score_command_judges_a_file_of_pairs(singers: Path, tmp_path: Path) -> None:
    pair = {"db": str(singers), "gold": "SELECT 4", "pred": "SELECT count(*) FROM singer"}
    file = tmp_path / "pairs.jsonl"
    file.write_text(
        "".join(
            json.dumps(pair | one) + "\n"
            for one in ({}, {"pred": "SELECT 5"}, {"gold": "SELECT no"})
        )
    )
    code, out, _ = run_score("--file", str(file))
    assert code == 1
    assert [line.split(": ")[:2] for line in out.splitlines()] == [
        ["1", "1"],
        ["2", "0"],
        ["3", "unscored"],
    ]
    file.write_text(
        json.dumps(pair)
        + "\n\n[1]\n{broken\n"
        + json.dumps(pair | {"pred": 5})
        + "\n"
        + json.dumps(pair)
    )
    done = CliRunner().invoke(score_commands.app, ["--file", str(file), "--json"])
    assert done.exit_code == 2
    assert [json.loads(line)["line"] for line in done.stdout.splitlines()] == [1, 6]
    assert [line.split(",")[1].split(":")[0] for line in done.stderr.splitlines()] == [
        " line 3",
        " line 4",
        " line 5",
    ]
    file.write_text(json.dumps(pair))
    assert run_score("--file", str(file))[0] == 0
    for arguments in (
        ["--file", str(tmp_path / "no")],
        ["--file", str(file), "--gold", "SELECT 1"],
        [],
    ):
        assert isinstance(run_score(*arguments)[2], UserError)
