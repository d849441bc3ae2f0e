"""`harness eval`, `dev` and `run` where another model answers a role: real gateway, workers and servers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.mock_model.server import ReceivedRequest, Reply, ScriptedServer
from harness.testing.fixtures import StartServer
from harness_sql.sqlite.environment import database_of
from harness_sql.tasks.pocket import PocketTasks

Command = Callable[..., subprocess.CompletedProcess[str]]
KEY = "sk-of-the-checker"


@pytest.fixture(autouse=True)
def no_endpoint_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY", "MODEL"):
        monkeypatch.delenv(name, raising=False)


def writes(request: ReceivedRequest) -> Reply | str:
    """Knows every answer, and must not be asked for checks."""
    assert "You check" not in str(request.messages[0]["content"])
    question = re.search(r"Question: (.*)", str(request.messages[-1]["content"]))
    assert question is not None
    return f"```sql\n{ {task.question: task.gold for task in PocketTasks().load('val')}[question.group(1)] }\n```"


def checked_by(server: ScriptedServer, *more: str) -> tuple[str, ...]:
    named = f"{{endpoint: '{server.base_url}', model: {server.model}, api_key_env: CHECKERS_KEY}}"
    return ("--set", f"roles.check_query={named}", *more)


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["reference_sql", "autogen_sql_idiomatic"])
def test_a_roles_endpoint_is_asked_recorded_and_its_key_is_not(
    command: Command, tmp_path: Path, scripted_server: StartServer, agent: str
) -> None:
    policy = scripted_server(writes, token_ids=False)
    checker = scripted_server(
        lambda request: "THE QUERY IS CORRECT.", token_ids=False, model="checker"
    )
    arguments = (
        "eval",
        "--plugin",
        agent,
        "--endpoint",
        policy.base_url,
        "--limit",
        "4",
        "--runs-dir",
        tmp_path,
    )
    done = command(*arguments, *checked_by(checker), CHECKERS_KEY=KEY)
    assert done.returncode == 0, done.stderr
    notice = f"check_query is answered by checker at {checker.base_url}"
    assert "accuracy 100.0 %" in done.stdout and notice in done.stdout
    assert checker.requests and all(
        "You check" in str(one.messages[0]["content"]) for one in checker.requests
    )
    assert {one.headers["authorization"] for one in checker.requests} == {f"Bearer {KEY}"}
    # The same sampling as the policy's, and a seed of its own for each call.
    assert {one.params["temperature"] for one in (*checker.requests, *policy.requests)} == {0.0}
    assert len({one.params["seed"] for one in checker.requests}) == len(checker.requests)

    (run,) = tmp_path.iterdir()
    record = json.loads((run / "run.json").read_text())
    assert (
        record["roles"]
        == record["identity"]["role_models"]
        == {"check_query": f"checker at {checker.base_url}"}
    )
    assert notice in command("runs", "show", run).stdout
    written = [file for file in run.rglob("*") if file.is_file()]
    assert written and not [file for file in written if KEY.encode() in file.read_bytes()]

    plain = shutil.copytree(run, tmp_path / "plain")
    del record["identity"]["role_models"], record["config"]["roles"]
    (plain / "run.json").write_text(json.dumps({**record, "id": "plain"}))
    refused = command("compare", run, plain)
    assert refused.returncode == 2 and "role_models.check_query differs" in refused.stderr, (
        refused.stderr
    )


@pytest.mark.slow
def test_a_dead_endpoint_of_a_role_is_infrastructure(
    command: Command, tmp_path: Path, scripted_server: StartServer
) -> None:
    policy = scripted_server(writes, token_ids=False)
    checker = scripted_server(lambda request: Reply.failure(500), token_ids=False, model="checker")
    arguments = ("eval", "--plugin", "reference_sql", "--endpoint", policy.base_url, "--limit", "4")
    done = command(*arguments, "--runs-dir", tmp_path, *checked_by(checker), CHECKERS_KEY=KEY)
    assert done.returncode == 1 and "brought no score" in done.stderr, done.stderr
    (run,) = tmp_path.iterdir()
    result = json.loads((run / "run.json").read_text())["result"]
    assert result["accuracy"] is None and result["scored"] == 0 and result["agent_failed"] == 0
    assert set(result["outcomes"]) == {"endpoint_error"}


@pytest.mark.slow
def test_dev_and_run_ask_a_roles_endpoint(command: Command, scripted_server: StartServer) -> None:
    policy = scripted_server(writes, token_ids=False)
    checker = scripted_server(
        lambda request: "THE QUERY IS CORRECT.", token_ids=False, model="checker"
    )
    end = ("--plugin", "reference_sql", "--endpoint", policy.base_url, *checked_by(checker))
    shown = command("dev", *end, "--tasks", "1", CHECKERS_KEY=KEY)
    assert shown.returncode == 0 and "THE QUERY IS CORRECT." in shown.stdout, shown.stderr
    assert f"check_query is answered by checker at {checker.base_url}" in shown.stderr
    task = PocketTasks().load("val")[0]
    asked = command(
        "run", *end, "--question", task.question, "--db", database_of(task), CHECKERS_KEY=KEY
    )
    assert asked.returncode == 0 and "THE QUERY IS CORRECT." in asked.stdout, asked.stderr
    assert len(checker.requests) == 2
    refused = command("run", *end, "--question", "?", "--db", database_of(task))
    assert (
        refused.returncode == 2
        and "the environment variable CHECKERS_KEY is not set" in refused.stderr
    )
