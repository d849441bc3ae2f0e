"""`harness eval` against servers that number their answers, limit their rate, or put all text elsewhere."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.mock_model.server import ReceivedRequest, Reply
from harness.testing.fixtures import StartServer

from .test_evaluation import golden

Command = Callable[..., subprocess.CompletedProcess[str]]
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def no_endpoint_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY", "MODEL"):
        monkeypatch.delenv(name, raising=False)


def evaluated(
    command: Command, tmp_path: Path, server: Any, *more: str
) -> tuple[dict[str, Any], str]:
    """Return record and summary of an evaluation of six tasks."""
    arguments = ("eval", "--plugin", "reference_sql", "--endpoint", server.base_url)
    done = command(*arguments, "--limit", "6", *more, "--runs-dir", tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = tmp_path.iterdir()
    return json.loads((run / "run.json").read_text()), done.stdout


def test_answers_may_have_any_id_where_no_token_ids_are_asked_for(
    command: Command, tmp_path: Path, scripted_server: StartServer
) -> None:
    ids = ["0", "1", "chatcmpl-1", "", None]

    def numbered(request: ReceivedRequest) -> Reply:
        message = {"role": "assistant", "content": str(golden(request))}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = {"id": ids[request.index % len(ids)], "choices": [choice]}
        return Reply(raw=json.dumps(body).encode())

    record, _ = evaluated(command, tmp_path, scripted_server(numbered, token_ids=False))
    assert (record["result"]["accuracy"], record["result"]["scored"]) == (1.0, 6)


def test_a_limited_rate_is_waited_for_counted_and_shown(
    command: Command, tmp_path: Path, scripted_server: StartServer
) -> None:
    def limited(request: ReceivedRequest) -> Reply | str:
        if request.index % 2 == 0:
            return Reply.failure(429, "slow down", retry_after="0.2")
        return golden(request)

    record, output = evaluated(command, tmp_path, scripted_server(limited, token_ids=False))
    result = record["result"]
    assert (result["accuracy"], result["unscored"]) == (1.0, 0)
    assert result["replies"]["rate_limits"] >= 6 and result["replies"]["rate_limit_s"] >= 1.2
    assert f"a server limited its rate {result['replies']['rate_limits']} times" in output


def test_where_the_text_of_empty_replies_was_is_said(
    command: Command, tmp_path: Path, scripted_server: StartServer
) -> None:
    def thinking(request: ReceivedRequest) -> Reply:
        text = "I think of a query." if request.index else "Let me see."
        message = {"role": "assistant", "content": None, "reasoning_content": text}
        body = {
            "id": f"x{request.index}",
            "model": f"served-{request.index % 2}",
            "choices": [{"index": 0, "message": message, "finish_reason": "length"}],
        }
        return Reply(raw=json.dumps(body).encode())

    server = scripted_server(thinking, token_ids=False)
    record, output = evaluated(command, tmp_path, server, "--set", "max_turns=1")
    assert record["result"]["replies"]["text_elsewhere"] == {"reasoning_content": 6}
    assert "all 6 replies were empty; their text was in `reasoning_content`" in output
    assert "answers name several models" in output
    assert record["versions"]["sqlite"]
