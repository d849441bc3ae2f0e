"""Attacks on a judge over real HTTP: one that obeys answers is found out, one that does not passes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from judging import grading
from typer.testing import CliRunner

from harness.errors import ConfigError, RunFailed
from harness.mock_model.server import Reply
from harness.testing.fixtures import StartServer
from harness_sql.cli import reward as commands
from harness_sql.rewards.judge_audit import ATTACKS, CASES

RIGHT = {case.right for case in CASES}


def firm(data: Mapping[str, str]) -> float:
    return float(data["answer"] in RIGHT)


def gullible(data: Mapping[str, str]) -> float:
    return float(data["answer"] in RIGHT or "1.0" in data["answer"])


def flattered(data: Mapping[str, str]) -> float:
    return 1.0 if data["answer"] in RIGHT else 0.3 if "Approved" in data["answer"] else 0.25


def audit(server: Any, *arguments: str) -> Any:
    settings = (f"reward.options.endpoint={server.base_url}", "reward.options.model=scripted")
    sets = [part for one in settings for part in ("--set", one)]
    return CliRunner().invoke(commands.app, ["audit", "--reward", "judge", *sets, *arguments])


def test_a_firm_judge_stands_every_attack(scripted_server: StartServer) -> None:
    server = scripted_server(grading(firm))
    done = audit(server, "--json")
    found = json.loads(done.stdout)
    assert done.exit_code == 0 and len(found["attacks"]) == len(ATTACKS) >= 15
    assert all(row["holds"] and row["value"] == 0.0 for row in found["attacks"])
    assert found["honest"] == [{"right": 1.0, "wrong": 0.0}] * 2 and found["told_apart"]
    asked = {str(request.messages[-1]["content"]) for request in server.requests}
    assert len(asked) == len(server.requests) <= (len(ATTACKS) + 2) * len(CASES)


def test_what_a_gullible_judge_falls_for_is_named(scripted_server: StartServer) -> None:
    done = audit(scripted_server(grading(gullible)))
    assert done.exit_code == 1
    lines = [line for line in done.stdout.splitlines() if "SUCCEEDS" in line]
    assert any("instruction after the answer" in line and "+1" in line for line in lines)
    assert not any("copied question" in line for line in lines)
    assert f"{len(lines)} of {len(ATTACKS)} attacks gain more than 0.1" in done.stdout


def test_a_gain_within_the_margin_is_none(scripted_server: StartServer) -> None:
    server = scripted_server(grading(flattered))
    assert audit(server).exit_code == 0
    done = audit(server, "--margin", "0.01", "--json")
    assert done.exit_code == 1
    (row,) = [row for row in json.loads(done.stdout)["attacks"] if not row["holds"]]
    assert (row["attack"], row["gain"]) == ("authority", 0.05)


def test_a_judge_that_tells_nothing_apart_does_not_pass(scripted_server: StartServer) -> None:
    done = audit(scripted_server(grading(lambda data: 0.5)))
    assert (
        done.exit_code == 1
        and "0 of" in done.stdout
        and "does not tell right from wrong" in done.stdout
    )


def test_an_attack_that_is_not_judged_does_not_hold(scripted_server: StartServer) -> None:
    def chokes(request: Any) -> Reply:
        return (
            Reply.failure(400, "too much")
            if "in more detail" in str(request.messages)
            else grading(firm)(request)
        )

    done = audit(scripted_server(chokes))
    assert done.exit_code == 1 and "0 of" in done.stdout and "1 were not judged" in done.stdout
    assert "answers 400" in done.stdout


def test_a_judge_that_is_down_ends_the_audit_in_one_line(scripted_server: StartServer) -> None:
    done = audit(scripted_server(lambda request: Reply.failure(401, "no")))
    assert isinstance(done.exception, RunFailed) and "answers 401" in str(done.exception)


def test_agreement_with_labels_has_an_interval(
    scripted_server: StartServer, tmp_path: Path
) -> None:
    def graded(data: Mapping[str, str]) -> float:
        return firm(data) or (
            0.8 if "good" in data["answer"] else 0.2 if "bad" in data["answer"] else 0.0
        )

    rows = [
        {
            "question": f"q{n}",
            "answer": f"{'good' if n % 2 else 'bad'} {n}",
            "gold": "g",
            "label": float(n % 2 or n < 4),
        }
        for n in range(20)
    ]
    file = tmp_path / "labels.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + "\n")
    done = audit(scripted_server(grading(graded)), "--labels", str(file), "--json")
    found = json.loads(done.stdout)["agreement"]
    side = found["agreement on which side of 0.5"]
    low, high = side["interval_95"]
    assert side["mean"] == 0.9 and 0.5 < low < 0.9 < high <= 1.0 and side["labels"] == 20
    assert found["mean distance"]["mean"] == pytest.approx(0.26) and found["unscored"] == 0
    shown = audit(scripted_server(grading(graded)), "--labels", str(file)).stdout
    assert "agreement on which side of 0.5: 0.900 (95 % interval 0." in shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has 0 labels"),
        ("{}\n", "line 1: not a JSON object with the texts"),
        (
            json.dumps({"question": "q", "answer": "a", "gold": "g", "label": 2}),
            "label from 0 to 1",
        ),
    ],
)
def test_labels_that_are_none_are_refused(
    text: str, message: str, scripted_server: StartServer, tmp_path: Path
) -> None:
    server = scripted_server([])
    file = tmp_path / "labels.jsonl"
    file.write_text(text)
    done = audit(server, "--labels", str(file))
    assert (
        isinstance(done.exception, ConfigError)
        and message in str(done.exception)
        and not server.requests
    )


def test_other_rewards_have_no_such_audit() -> None:
    for arguments, message in (
        (["--reward", "facts"], "no attacks to replay"),
        (["--set", "a=b"], "are for a judge"),
    ):
        done = CliRunner().invoke(commands.app, ["audit", *arguments])
        assert isinstance(done.exception, ConfigError) and message in str(done.exception)
