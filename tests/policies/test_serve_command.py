"""`harness serve`, and commands that serve a policy themselves. The bundled policy, real processes, real HTTP."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from harness.cli.serve import preset_of, to_serve
from harness_sql.tasks.pocket import PocketTasks

HARNESS = [sys.executable, "-m", "harness"]


@pytest.mark.slow
def test_a_served_policy_wants_its_key_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    command = [*HARNESS, "serve", "pocket-sql", "--device", "cpu", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stdout is not None
    try:
        told = json.loads(process.stdout.readline())
        assert (
            told["OPENAI_BASE_URL"].startswith("http://127.0.0.1:")
            and told["MODEL"] == "pocket-sql"
        )
        with httpx.Client(base_url=told["OPENAI_BASE_URL"], timeout=60, trust_env=False) as client:
            asked = {
                "model": "pocket-sql",
                "max_tokens": 2,
                "messages": [{"role": "user", "content": "hi"}],
            }
            for headers in ({}, {"authorization": "Bearer wrong"}):
                assert client.get("models", headers=headers).status_code == 401
                refused = client.post("chat/completions", json=asked, headers=headers)
                assert (
                    refused.status_code == 401
                    and refused.json()["error"]["code"] == "invalid_api_key"
                )
            client.headers["authorization"] = f"Bearer {told['OPENAI_API_KEY']}"
            assert [one["id"] for one in client.get("models").json()["data"]] == ["pocket-sql"]
            assert (
                client.post("chat/completions", json=asked).json()["usage"]["completion_tokens"]
                == 2
            )
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(told["OPENAI_BASE_URL"], trust_env=False)
    finally:
        process.kill()


@pytest.mark.slow
def test_a_question_is_answered_by_a_policy_that_the_command_serves(tmp_path: Path) -> None:
    (database, *_) = sorted(
        Path(PocketTasks(cache_dir=str(tmp_path)).load("val")[0].data["database"])
        .parents[1]
        .rglob("*.sqlite")
    )
    command = [
        *HARNESS,
        "run",
        "--plugin",
        "reference_sql",
        "--model",
        "pocket-sql",
        "--set",
        "device=cpu",
        "--json",
    ]
    command += ["--question", "How many rows are there?", "--db", str(database)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    attempt = json.loads(done.stdout)
    assert attempt["outcome"] == "ok" and attempt["transitions"][0]["model"] == "pocket-sql"
    assert (
        "pocket-sql (writes, checks and rewrites SQL for `pocket`) is being served on cpu"
        in done.stderr
    )


def test_a_model_is_the_endpoints_unless_it_is_a_run_or_has_a_name_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.delenv(variable, raising=False)
    assert to_serve(None) is None and to_serve("pocket-sql", "http://127.0.0.1:1/v1") is None
    assert to_serve("some/model") == "some/model"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    assert to_serve("some/model") is None and to_serve("pocket-sql") == "pocket-sql"
    assert preset_of(None, None) == ("endpoint", None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["pocket-sql", "--step", "3"],
            "--step is of a run's checkpoints, and pocket-sql is no run folder",
        ),
        (["pocket-sq", "--device", "cpu"], "did you mean 'pocket-sql'?"),
    ],
)
def test_what_cannot_be_served_is_one_line(arguments: list[str], said: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [*HARNESS, "serve", *arguments], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1
