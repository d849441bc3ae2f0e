"""The policy server's start. vLLM is a small stand-in here: what is tried is our side of it."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from harness.errors import RunFailed
from harness.policies import serve

SERVER = """
import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"data": [{"id": sys.argv[sys.argv.index("--model") + 1]}]}).encode())

HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture(autouse=True)
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "fake" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(SERVER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))


def ports(monkeypatch: pytest.MonkeyPatch, *chosen: int) -> None:
    given = iter(chosen)
    monkeypatch.setattr(serve, "_free_port", lambda: next(given))


def test_a_port_that_was_taken_meanwhile_is_left_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, free = tmp_path / "log", serve._free_port()
    with serve.served("a", "cuda", 64, log) as first:
        taken = int(first.rsplit(":", 1)[1].removesuffix("/v1"))
        ports(monkeypatch, taken, free)
        with serve.served("b", "cuda", 64, tmp_path / "second") as second:
            assert f":{free}/" in second
            with urllib.request.urlopen(second + "/models") as answer:
                assert json.load(answer)["data"] == [{"id": "b"}]
        ports(monkeypatch, taken, taken)
        with (
            pytest.raises(RunFailed, match="did not start"),
            serve.served("c", "cuda", 64, tmp_path / "third"),
        ):
            raise AssertionError
