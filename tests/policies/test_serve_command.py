"""`harness serve`, and commands that serve a policy themselves. The bundled policy, real processes, real HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import httpx
import psutil
import pytest

from harness.cli.serve import patient, preset_of, to_serve
from harness.config import load_config
from harness_sql.tasks.pocket import PocketTasks

HARNESS = [sys.executable, "-m", "harness"]


@pytest.mark.slow
def test_a_served_policy_wants_its_key_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    command = [*HARNESS, "serve", "pocket-sql", "--device", "cpu", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stdout is not None
    try:
        ready = json.loads(process.stdout.readline())
        assert (
            ready["OPENAI_BASE_URL"].startswith("http://127.0.0.1:")
            and ready["MODEL"] == "pocket-sql"
        )
        with httpx.Client(base_url=ready["OPENAI_BASE_URL"], timeout=60, trust_env=False) as client:
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
            client.headers["authorization"] = f"Bearer {ready['OPENAI_API_KEY']}"
            assert [one["id"] for one in client.get("models").json()["data"]] == ["pocket-sql"]
            assert (
                client.post("chat/completions", json=asked).json()["usage"]["completion_tokens"]
                == 2
            )
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(ready["OPENAI_BASE_URL"], trust_env=False)
    finally:
        process.kill()


def read_until(stream: IO[str], text: str) -> None:
    """Read lines until one has a text; the test's own time limit ends a wait in vain."""
    for line in stream:
        if text in line:
            return
    raise AssertionError(f"no line with {text!r}")


LOOKS_OFTEN = """
import sys
from harness.cli import main, serve
serve.LOOK_S, serve.ANSWER_S = 0.2, 1.0
sys.argv = ["harness", "serve", "pocket-sql", "--device", "cpu", "--json"]
main()
"""


@pytest.mark.slow
def test_a_server_that_does_not_answer_has_not_ended(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", LOOKS_OFTEN],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        url = json.loads(process.stdout.readline())["OPENAI_BASE_URL"]
        (server,) = [
            child
            for child in psutil.Process(process.pid).children()
            if "harness_policy_server.server" in child.cmdline()
        ]
        server.suspend()
        read_until(process.stderr, "does not answer")
        server.resume()
        read_until(process.stderr, "answers again")
        assert httpx.get(f"{url}/models", trust_env=False, timeout=60).status_code == 401
        server.kill()
        read_until(process.stderr, "has ended")
        assert process.wait(60) == 1
    finally:
        process.kill()


@pytest.mark.slow
def test_a_served_policy_answers_whether_it_is_well_beside_large_requests(tmp_path: Path) -> None:
    command = [*HARNESS, "serve", "pocket-sql", "--device", "cpu", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stdout is not None
    try:
        ready = json.loads(process.stdout.readline())
        headers = {"authorization": f"Bearer {ready['OPENAI_API_KEY']}"}
        large = {"messages": [{"role": "user", "content": "a b " * 5_000_000}]}
        loop = {"chat_template": "{% for i in range(10**9) %}{% endfor %}"}
        blocking = {
            "messages": [{"role": "user", "content": "hi"}],
            "chat_template_kwargs": loop,
        }
        url = ready["OPENAI_BASE_URL"]
        with httpx.Client(headers=headers, timeout=60, trust_env=False) as client:
            for asked, names in ((large, "messages"), (blocking, "chat_template_kwargs")):
                answer = client.post(f"{url}/chat/completions", json=asked)
                assert answer.status_code == 400, answer.text
                assert answer.json()["error"]["param"].startswith(names)
                assert client.get(f"{url.removesuffix('/v1')}/health").status_code == 200
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
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


def test_a_rollouts_deadline_on_a_cpu_grows_with_the_policy(tmp_path: Path) -> None:
    values = 250_000_000
    entry = {"dtype": "F32", "shape": [values], "data_offsets": [0, 4 * values]}
    header = json.dumps({"weight": entry}).encode()
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(weights, weights.stat().st_size + 4 * values)  # a hole, which takes no disk
    (tmp_path / "config.json").write_text("{}")

    def deadline_s(model: str | None, *overrides: str) -> float:
        config = load_config("cpu", None, ["device=cpu", *overrides])
        return patient(config, model, overrides).rollout.timeout_s

    assert deadline_s(str(tmp_path)) == 500
    assert deadline_s(str(tmp_path), "rollout.timeout_s=30") == 30
    assert deadline_s("pocket-sql") == deadline_s(None) == 120


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
    ("arguments", "message"),
    [
        (
            ["pocket-sql", "--step", "3"],
            "--step selects a checkpoint of a run, and pocket-sql is no run folder: leave it out",
        ),
        (["pocket-sq", "--device", "cpu"], "did you mean 'pocket-sql'?"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [*HARNESS, "serve", *arguments], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("key", ["clé", "two words", "a\nb", "a" * 5000])
def test_a_key_that_no_header_carries_is_refused(key: str, tmp_path: Path) -> None:
    command = [*HARNESS, "serve", "pocket-sql", "--device", "cpu"]
    environment = {**os.environ, "HARNESS_SERVE_KEY": key}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "HARNESS_SERVE_KEY: a request's header cannot carry this key" in done.stderr
