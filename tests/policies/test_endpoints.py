"""The look at an endpoint before anything starts: real servers that are wrong in the usual ways."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from harness.api.parameters import named_endpoint
from harness.errors import UserError
from harness.policies.endpoints import checked_endpoint
from harness.testing.fixtures import StartServer

Answer = tuple[int, Any]
Answers = Callable[[str, str, str | None], Answer]
"""Status and body for method, path and the key of a request."""

LISTED = {"data": [{"id": "small"}, {"id": "large"}]}
COMPLETION = {"choices": [{"message": {"role": "assistant", "content": "Hi"}}]}


@contextmanager
def serving(answers: Answers) -> Iterator[str]:
    """Yield the URL of a server, without `/v1`."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("content-length", 0))
            self.rfile.read(length)
            status, body = answers(self.command, self.path, self.headers.get("authorization"))
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = _answer

        def log_message(self, *arguments: object) -> None:
            """Keep standard error free."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def well(method: str, path: str, key: str | None) -> Answer:
    if path == "/v1/models":
        return 200, LISTED
    return (200, COMPLETION) if path == "/v1/chat/completions" else (404, {"detail": "Not Found"})


def guarded(method: str, path: str, key: str | None) -> Answer:
    if key != "Bearer right":
        return 401, {"error": {"message": "bad key"}}
    return well(method, path, key)


def broken(method: str, path: str, key: str | None) -> Answer:
    if method == "POST":
        return 500, {"error": {"message": "CUDA error:\nout of memory"}}
    return well(method, path, key)


def only_small(method: str, path: str, key: str | None) -> Answer:
    return (404, {"error": {"message": "no such model"}}) if method == "POST" else (200, LISTED)


def without_list(method: str, path: str, key: str | None) -> Answer:
    return (200, COMPLETION) if method == "POST" else (404, {})


def limited(method: str, path: str, key: str | None) -> Answer:
    return (429, {}) if method == "POST" else (200, LISTED)


def test_an_endpoint_that_answers_gives_its_models() -> None:
    with serving(well) as url:
        found = checked_endpoint(f"{url}/v1", None, None, "OPENAI_API_KEY")
    assert (found.model, found.offered) == ("small", ("small", "large"))


@pytest.mark.parametrize(("model", "remarks"), [(None, 1), ("large", 0)])
def test_the_first_of_several_models_is_named(model: str | None, remarks: int) -> None:
    written: list[str] = []
    with serving(well) as url:
        _, chosen, _ = named_endpoint(f"{url}/v1", model, "OPENAI_API_KEY", written.append)
    assert chosen == (model or "small") and len(written) == remarks
    for text in written:
        assert text.startswith("model: small, the first of 2 that") and "--model NAME" in text


def test_a_server_without_a_list_and_one_that_limits_requests_are_taken() -> None:
    for answers in (without_list, limited):
        with serving(answers) as url:
            assert checked_endpoint(f"{url}/v1", "named", None, "KEY").model == "named"


@pytest.mark.parametrize(
    ("answers", "path", "model", "key", "message"),
    [
        (
            well,
            "",
            None,
            None,
            "has no model API (HTTP 404), but URL/v1 has. Give --endpoint URL/v1",
        ),
        (
            guarded,
            "/v1",
            None,
            None,
            "asks for a key (HTTP 401), and MY_KEY is not set. Set MY_KEY",
        ),
        (guarded, "/v1", None, "wrong", "refuses the key in MY_KEY (HTTP 401). Correct MY_KEY"),
        (
            broken,
            "/v1",
            None,
            None,
            "with HTTP 500: CUDA error: out of memory. See the server's log",
        ),
        (
            only_small,
            "/v1",
            "smal",
            None,
            "offers small, large: --model NAME; did you mean 'small'?",
        ),
        (
            well,
            "/v1/chat/completions",
            "small",
            None,
            "to URL/v1, without /chat/completions, or the model 'small'",
        ),
        (without_list, "/v1", None, None, "does not list its models. Name one: --model NAME"),
    ],
)
def test_a_wrong_endpoint_is_refused_in_one_line_that_says_what_to_change(
    answers: Answers, path: str, model: str | None, key: str | None, message: str
) -> None:
    with serving(answers) as url, pytest.raises(UserError) as refused:
        checked_endpoint(url + path, model, key, "MY_KEY")
    text = str(refused.value)
    assert message.replace("URL", url) in text
    assert "\n" not in text


def test_a_dead_port_is_refused_before_anything_starts(
    command: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        url = f"http://127.0.0.1:{held.getsockname()[1]}/v1"
        asked = ("eval", "--agent", "reference_sql", "--endpoint", url, "--model", "any")
        done = command(*asked, "--runs-dir", tmp_path / "runs")
    assert done.returncode == 2
    assert f"no model server answers at {url}" in done.stderr
    assert "correct --endpoint" in done.stderr and "ssl" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_tls_to_a_plain_server_names_the_plain_url() -> None:
    with serving(well) as url, pytest.raises(UserError) as refused:
        secured = url.replace("http://", "https://")
        checked_endpoint(f"{secured}/v1", None, None, "KEY")
    assert f"A plain server: --endpoint {url}/v1" in str(refused.value)


def test_a_scripted_server_keeps_no_record_of_the_look(scripted_server: StartServer) -> None:
    server = scripted_server([])
    assert checked_endpoint(server.base_url, None, None, "KEY").model == server.model
    assert server.requests == []
