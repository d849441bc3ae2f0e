"""A run whose server fails: the rollout is tried again, then unscored, never 0; and no key is left anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest

from harness.contracts.environments import Tool
from harness.mock_model.server import ReceivedRequest, Reply, ScriptedServer
from harness_sql.cli.tools import problem_of
from harness_sql.tool_loop.scenarios import calling

SERVER = Path(__file__).with_name("mcp_server.py")
KEY = "sk-a-key-that-nobody-may-see"


def script(request: ReceivedRequest) -> Reply:
    if "breaks" in str(request.messages[1]["content"]):
        return calling(("misbehave", '{"how": "die"}'))
    if len(request.messages) == 2:
        return calling(("misbehave", '{"how": "key"}'), ("echo", '{"text": "Paris"}'))
    return Reply("It is Paris.")


@pytest.mark.slow
def test_what_the_server_does_to_an_evaluation(tmp_path: Path) -> None:
    file = tmp_path / "questions.csv"
    file.write_text(
        "id,question,answer,split\na,Which town breaks?,Rome,val\nb,Which town is it?,Paris,val\n"
    )
    # A process for each attempt: else whoever waits for an answer when it dies gets none, either.
    server = {
        "command": sys.executable,
        "args": [str(SERVER)],
        "env": ["ODD_KEY"],
        "per_attempt": True,
    }
    with ScriptedServer(script, token_ids=False) as model:
        command = [
            sys.executable,
            "-m",
            "harness",
            "eval",
            "--agent",
            "reference_tools",
            "--task",
            "mcp",
        ]
        command += [
            "--split",
            "val",
            "--endpoint",
            model.base_url,
            "--runs-dir",
            str(tmp_path / "runs"),
            "--json",
        ]
        for setting in (
            f"task.options.path={file}",
            f"task.options.servers={json.dumps({'odd': server})}",
            "reward.name=facts",
            "rollout.retries=1",
        ):
            command += ["--set", setting]
        variables = os.environ | {"ODD_KEY": KEY}
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=variables)
    (folder,) = (tmp_path / "runs").iterdir()
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["result"]["outcomes"] == {"environment_error": 1, "ok": 1}
    rows = {
        row["task_id"]: row
        for row in pyarrow.parquet.read_table(folder / "episodes.parquet").to_pylist()
    }
    assert (rows["b"]["outcome"], rows["b"]["reward"]) == ("ok", 1.0)
    assert [call["text"] for call in json.loads(rows["b"]["tool_calls"])] == [
        "my key is [ODD_KEY]",
        "Paris",
    ]
    assert (rows["a"]["outcome"], rows["a"]["reward"]) == ("environment_error", None)
    assert "out of paper" in rows["a"]["detail"]
    asked = [request for request in model.requests if "breaks" in str(request.messages)]
    assert len(asked) == 2, "once more than the first time"
    assert len(record["identity"]["tools"]) == 16
    assert str(SERVER) not in json.dumps(record["identity"])
    for path in folder.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("tool", "problem"),
    [
        (Tool("fine", "Says.", {"type": "object", "properties": {}}), ""),
        (Tool("a tool", "Says.", {"type": "object"}), "its name is not 1 to 64 letters"),
        (
            Tool("tool", "Says.", {"type": "string"}),
            "its arguments are of type 'string', not an object",
        ),
        (
            Tool("tool", "Says.", {"type": "object", "properties": {"a": {"type": "sting"}}}),
            "its schema is not a valid JSON schema: 'sting'",
        ),
        (Tool("tool", " ", {"type": "object"}), "it has no description"),
    ],
)
def test_a_tool_that_would_be_refused_is_found_before_a_run(tool: Tool, problem: str) -> None:
    found = problem_of(tool)
    assert found.startswith(problem) and bool(found) == bool(problem)
