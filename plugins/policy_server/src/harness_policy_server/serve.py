"""Serve a policy for the length of a `with` block: by harness's server on a CPU, vLLM on a GPU.

Run as a program it becomes vLLM's server: `python -m harness_policy_server.serve PARENT_PID OPTIONS...`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.errors import EnvironmentProblem, RunFailed, how_to_install, last_line
from harness.policies import about
from harness.policies.servers import DEFAULT_ENGINE, Engine
from harness.rollout.processes import PARENT, die_with_parent, stop_process
from harness.util.threads import computing_threads
from harness_policy_server.key_check import KEY, KeyCheck
from harness_policy_server.vllm_log import REMEDY_OF_A_SERVER, start_failure

PLAIN_SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0}
"""Sampling of a vLLM server where a request states nothing else, as in trainings. vLLM would take
values from the policy's `generation_config.json`, which the CPU's server ignores.
"""
SEATS = 256
"""The most whole conversations that vLLM's cache has room for."""
LARGEST_CACHE = 8 << 30
"""The most bytes of that cache, unless one whole conversation needs more."""
VLLMS_KEY = "VLLM_API_KEY"
"""Environment variable with a key that vLLM itself requires."""
ENDING_S = 2.0
"""Seconds for a process to end after its output did."""
KEY_AND_VALUE = 2
BYTES_OF_BF16 = 2


@contextmanager
def served(
    model: str,
    device: str,
    max_length: int,
    log: Path,
    engine: Engine = DEFAULT_ENGINE,
    *,
    port: int = 0,
    name: str = "",
    key: str = "",
) -> Iterator[str]:
    """Serve as `harness.policies.servers.Server`, on `cpu` with harness's own server, else vLLM.

    Harness's server reads tool calls of Hermes and Qwen2.5-Coder.
    """
    environment = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment.setdefault("VLLM_HOST_IP", "127.0.0.1")  # processes of the engine connect here
    # Ignore a key in the environment: with it vLLM would refuse this server's clients.
    for variable in (KEY, VLLMS_KEY):
        environment.pop(variable, None)
    if key:
        environment[KEY] = key
    if Path(model).exists():
        environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    log.parent.mkdir(parents=True, exist_ok=True)
    if device == "cpu":
        process, address = _own(model, max_length, environment, log, engine.parser, port, name)
    else:
        if engine.batch_invariant:
            environment["VLLM_BATCH_INVARIANT"] = "1"
        process, address = _vllm(model, max_length, environment, log, engine.parser, port, name)
    try:
        yield f"http://{address}/v1"
    finally:
        _stop(process)


def _own(
    model: str,
    max_length: int,
    environment: Mapping[str, str],
    log: Path,
    parser: str,
    port: int,
    name: str,
) -> tuple[subprocess.Popen[bytes], str]:
    computing_threads()  # a wrong number is refused here; the server would log a traceback
    options = [model, str(max_length), str(port), name or model, parser]
    command = ["-m", "harness_policy_server.server", *options]
    process = _start(command, environment, log, stdout=subprocess.PIPE)
    with _stopped_on_error(process):
        return process, _address(process, log)


def _vllm(
    model: str,
    max_length: int,
    environment: Mapping[str, str],
    log: Path,
    parser: str,
    wanted: int,
    name: str,
) -> tuple[subprocess.Popen[bytes], str]:
    command = [
        "-m",
        "harness_policy_server.serve",
        "--model",
        model,
        "--max-model-len",
        str(max_length),
        "--override-generation-config",
        json.dumps(PLAIN_SAMPLING),
    ]
    if name:
        command += ["--served-model-name", name]
    command += _cache(model, max_length)
    key = environment.get(KEY, "")
    if key:
        command += ["--middleware", f"{KeyCheck.__module__}.{KeyCheck.__name__}"]
    if parser:
        command += ["--enable-auto-tool-choice", "--tool-call-parser", parser]
    for last in (False, True):
        port, known = wanted or _free_port(), log.stat().st_size if log.exists() else 0
        process = _start([*command, "--host", "127.0.0.1", "--port", str(port)], environment, log)
        try:
            with _stopped_on_error(process):
                return process, _ready(process, name or model, port, log, key)
        except RunFailed:
            # vLLM accepts no open socket, so another process may have taken the port meanwhile.
            if last or wanted or b"Address already in use" not in log.read_bytes()[known:]:
                raise
    raise AssertionError


def _cache(model: str, max_length: int) -> list[str]:
    """Return vLLM's options for a limited key/value cache, so that processes can share a GPU.

    Args:
        max_length: Tokens of one conversation, prompt and response together.
    """
    try:
        shape = about(model)
        head = shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"]
        values = shape["num_hidden_layers"] * shape["num_key_value_heads"] * head
    except (KeyError, TypeError):  # not downloaded yet, or another kind of model
        return []
    conversation = max_length * values * KEY_AND_VALUE * BYTES_OF_BF16
    cache = max(conversation, min(SEATS * conversation, LARGEST_CACHE))
    # vLLM ignores the share if the bytes are given, but does not start unless that share is free.
    return ["--kv-cache-memory-bytes", str(cache), "--gpu-memory-utilization", "0.1"]


def _start(
    command: list[str], environment: Mapping[str, str], log: Path, stdout: int | None = None
) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=output if stdout is None else stdout,
            stderr=output,
            env={**environment, PARENT: str(os.getpid())},
            start_new_session=True,
        )


@contextmanager
def _stopped_on_error(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        _stop(process)
        raise


def _stop(process: subprocess.Popen[bytes]) -> None:
    stop_process(process)
    with suppress(
        ProcessLookupError
    ):  # vLLM's engine has a process of its own, which a killed server leaves behind
        os.killpg(process.pid, signal.SIGKILL)


def _address(process: subprocess.Popen[bytes], log: Path, timeout_s: float = 300.0) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], timeout_s)
    line = process.stdout.readline().decode().strip() if ready else ""
    if not line:
        raise _failure(process, log)
    return line


def _ready(
    process: subprocess.Popen[bytes],
    model: str,
    port: int,
    log: Path,
    key: str,
    timeout_s: float = 900.0,
) -> str:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/v1/models", headers=headers)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(asked, timeout=2) as answer:
                # Another model is served: another server took the port first.
                models = [entry["id"] for entry in json.load(answer)["data"]]
                if model in models:
                    return f"127.0.0.1:{port}"
        except (OSError, ValueError, KeyError):
            pass
        time.sleep(0.5)
    raise _failure(process, log)


def _failure(process: subprocess.Popen[bytes], log: Path) -> RunFailed | EnvironmentProblem:
    with suppress(subprocess.TimeoutExpired):  # its output may end shortly before the process
        process.wait(ENDING_S)
    text = log.read_text(encoding="utf-8", errors="replace")
    if explained := start_failure(text, REMEDY_OF_A_SERVER):
        return RunFailed(f"{explained} (whole log: {log})")
    last = last_line(text)[:300]
    if "No module named" in last:
        return EnvironmentProblem(f"{last}. Install it: {how_to_install('cpu')}")
    return RunFailed(
        f"the policy server did not start (status {process.poll()}): {last} (whole log: {log})"
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Become vLLM's server, which gets SIGTERM and ends its engine too when the parent ends."""
    die_with_parent(signal.SIGTERM)  # outlasts the exec
    server = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *sys.argv[1:]]
    os.execv(sys.executable, server)


if __name__ == "__main__":
    main()
