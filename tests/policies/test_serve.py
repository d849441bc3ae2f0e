"""The policy server's start. vLLM is a small stand-in here: what is tried is our side of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from harness.errors import ConfigError, RunFailed
from harness.policies import resolve
from harness.policies.servers import Engine
from harness_policy_server import serve
from harness_policy_server.loading import load_policy, refuse_incomplete
from partial_policies import without_a_tensor

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

LOADING = """
import os
import signal
import subprocess
import sys
import time

signal.signal(signal.SIGTERM, ON_TERM)
engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
try:
    with open(os.environ["PIDS"] + ".part", "w") as file:
        file.write(f"{os.getpid()} {engine.pid}")
    os.replace(os.environ["PIDS"] + ".part", os.environ["PIDS"])
    time.sleep(300)
finally:
    engine.kill()
"""
"""A vLLM that never gets ready and, like the real one, has an engine in a process of its own."""
GPU = "import harness.config; harness.config.resolve_device = lambda device: 'cuda'"
"""A machine that shows a GPU, to whoever starts Python there."""
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "fake" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(SERVER)
    (tmp_path / "fake" / "sitecustomize.py").write_text(GPU)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "fake"), str(ROOT)]))
    # The tests name policies that no hub has; asking one costs a minute where none is reached.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return package / "api_server.py"


def ports(monkeypatch: pytest.MonkeyPatch, *chosen: int) -> None:
    given = iter(chosen)
    monkeypatch.setattr(serve, "_free_port", lambda: next(given))


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_the_engine_computes_in_the_mode_that_is_requested(
    tmp_path: Path, stand_in: Path, batch_invariant: bool
) -> None:
    """The server process reports the variable by which vLLM chooses its kernels."""
    reports = 'import os; print("mode", os.environ.get("VLLM_BATCH_INVARIANT"), flush=True)\n'
    stand_in.write_text(reports + SERVER)
    log = tmp_path / "log"
    with serve.served("a", "cuda", 64, log, Engine(batch_invariant=batch_invariant)):
        pass
    assert f"mode {'1' if batch_invariant else None}" in log.read_text()


@pytest.mark.parametrize("key", ["", "secret"])
def test_the_key_of_a_server_is_not_in_vllms_own_variable(
    tmp_path: Path, stand_in: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """vLLM names its cache of compiled models by `VLLM_API_KEY`, among others."""
    reports = (
        "import os, sys\n"
        "print('key', os.environ.get('HARNESS_POLICY_KEY'), os.environ.get('VLLM_API_KEY'))\n"
        "print('arguments', *sys.argv, flush=True)\n"
    )
    stand_in.write_text(reports + SERVER)
    for variable in ("HARNESS_POLICY_KEY", "VLLM_API_KEY"):
        monkeypatch.setenv(variable, "of others")
    log = tmp_path / "log"
    with serve.served("a", "cuda", 64, log, key=key):
        pass
    text = log.read_text()
    assert f"key {key or None} None\n" in text
    middleware = "--middleware harness_policy_server.key_check.KeyCheck"
    assert (middleware in text) == bool(key)
    assert not key or key not in text.partition("arguments")[2]


def test_the_engine_takes_no_sampling_from_the_policys_folder(
    tmp_path: Path, stand_in: Path
) -> None:
    """Published models ask for penalties in `generation_config.json` that trainings do not use."""
    stand_in.write_text('import sys; print("arguments", *sys.argv, flush=True)\n' + SERVER)
    log = tmp_path / "log"
    with serve.served("a", "cuda", 64, log, Engine()):
        pass
    arguments = log.read_text().partition("--override-generation-config ")[2]
    sampling, _ = json.JSONDecoder().raw_decode(arguments)
    assert sampling == {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0}


@pytest.mark.slow
def test_a_port_that_was_taken_meanwhile_is_left_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_the_cache_of_every_policy_leaves_the_gpu_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = json.loads((Path(resolve("pocket-probe")) / "config.json").read_text())
    large = {
        **shape,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "hidden_size": 4096,
        "num_attention_heads": 32,
    }
    started: list[list[str]] = []
    monkeypatch.setattr(serve, "_start", lambda command, *_: started.append(command))
    monkeypatch.setattr(serve, "_ready", lambda *_: "")
    monkeypatch.setattr(serve, "_stop", lambda process: None)
    for name, config in (
        ("small", shape),
        ("large", large),
        ("of another make", {"model_type": "other"}),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        with serve.served(str(tmp_path / name), "cuda", 608, tmp_path / "log"):
            pass
    layers, heads, wide = shape["num_hidden_layers"], shape["num_key_value_heads"], 64
    small, large_one, unknown = started
    room = small[small.index("--kv-cache-memory-bytes") + 1]
    assert room == str(256 * 608 * layers * heads * wide * 2 * 2)  # two bytes for keys and values
    assert large_one[large_one.index("--kv-cache-memory-bytes") + 1] == str(8 << 30)
    assert "--kv-cache-memory-bytes" not in unknown  # vLLM decides


def wait_until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    ends = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends, "it never happened"
        time.sleep(0.05)


def ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.slow
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux tells a process that its parent died"
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_vllm_ends_with_an_evaluation_that_is_told_to_end_or_killed(
    number: signal.Signals, tmp_path: Path, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Told to end, a server that does not listen is killed, engine and all. When the evaluation itself is killed,
    # the server is told to end, and ends its engine as vLLM does.
    on_term = "signal.SIG_IGN" if number == signal.SIGTERM else "lambda *_: sys.exit(1)"
    stand_in.write_text(LOADING.replace("ON_TERM", on_term))
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    command = [
        "eval",
        "--plugin",
        "reference_sql",
        "--model",
        "pocket-sql",
        "--preset",
        "cpu",
        "--limit",
        "1",
    ]
    evaluation = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "harness",
            *command,
            "--set",
            "device=cuda",
            "--runs-dir",
            str(tmp_path / "runs"),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    pids: list[int] = []
    try:
        wait_until(lambda: (tmp_path / "pids").exists() or evaluation.poll() is not None)
        assert evaluation.poll() is None, evaluation.communicate()[1]
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        evaluation.send_signal(number)
        _, error = evaluation.communicate(timeout=60)
        assert evaluation.returncode == (130 if number == signal.SIGTERM else -signal.SIGKILL)
        assert "Traceback" not in error
        wait_until(lambda: all(map(ended, pids)), 15)
    finally:
        evaluation.kill()
        for pid in pids:
            if not ended(pid):
                os.kill(pid, signal.SIGKILL)


def test_a_policy_that_lacks_weights_is_not_served(tmp_path: Path) -> None:
    folder = tmp_path / "partial"
    absent = without_a_tensor(folder)
    with pytest.raises(ConfigError, match=f"lacks 1 of the weights .* such as {absent}"):
        load_policy(folder)


def test_missing_weights_are_found_without_reading_any(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    # The embeddings are tied: the file holds no lm_head.weight, and needs none.
    refuse_incomplete(Path(resolve("pocket-sql")), AutoModelForCausalLM)
    folder = tmp_path / "partial"
    absent = without_a_tensor(folder)
    with pytest.raises(ConfigError, match=f"{folder} lacks 1 of the weights .* such as {absent}"):
        refuse_incomplete(folder, AutoModelForCausalLM)
    # Untied, the same file lacks two.
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "tie_word_embeddings": False}))
    with pytest.raises(ConfigError, match="lacks 2 of the weights .* such as lm_head.weight"):
        refuse_incomplete(folder, AutoModelForCausalLM)
