"""Checks of `harness doctor --deep`: imports in separate processes, and a preset's needs."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from netrc import NetrcParseError, netrc
from pathlib import Path

from harness.config import Config, resolve_device
from harness.contracts.findings import Finding, held
from harness.errors import ConfigError, last_line
from harness.policies import resolve

IMPORT_S = 180.0
"""Seconds after which an import counts as hanging."""
LIBRARIES = (
    ("torch", "torch"),
    ("transformers", "transformers"),
    ("ray", "ray"),
    ("verl", "verl.trainer.main_ppo"),
    ("vllm", "vllm.entrypoints.openai.api_server"),
)
"""Name of each library, and the module of it that a run imports first."""
_KEYS = {"wandb": ("WANDB_API_KEY", "api.wandb.ai"), "swanlab": ("SWANLAB_API_KEY", "")}
"""For loggers that need a key: its variable, and the machine in `~/.netrc` as an alternative."""
BYTES_A_PARAMETER = 16
"""Bytes per parameter for weights, gradients and AdamW's two moments in fp32."""


Say = Callable[[str], object]


def try_out(config: Config, say: Say = lambda text: None) -> Iterator[Finding]:
    """Import what a run imports, and check the configuration's device, policy and loggers.

    Args:
        say: Called with a line before each check, since an import may take a minute.
    """
    yield from _imports(say)
    yield from _cuda(config, say)
    yield from _policy(config, say)
    yield from _loggers(config)


def _imports(say: Say) -> Iterator[Finding]:
    from harness.plugins import registry
    from harness.rollout.environments import python_for

    tried = [(name, sys.executable, module) for name, module in LIBRARIES if _installed(module)]
    for spec in registry().specs("queue"):
        tried.append((spec.name, sys.executable, spec.target.partition(":")[0]))
    for spec in registry().specs("agent"):
        # Each with its own interpreter, which may have other libraries than this one.
        python = python_for(registry().owner("agent", spec.name))
        tried.append((f"agent {spec.name}", python, spec.target.partition(":")[0]))

    def imported(number: int, name: str, python: str, module: str) -> Finding:
        say(f"importing {name} ({number} of {len(tried)})")
        return _imported(name, python, module)

    # Large libraries keep a processor busy, so more concurrent imports would exceed their limit.
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2)) as pool:
        yield from pool.map(lambda one: imported(one[0], *one[1]), enumerate(tried, 1))


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module.partition(".")[0]) is not None


def _imported(name: str, python: str, module: str) -> Finding:
    began = time.monotonic()
    try:
        done = subprocess.run(
            [python, "-c", f"import {module}"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=IMPORT_S,
        )
    except subprocess.TimeoutExpired:
        return Finding(
            f"import {name}", "problem", f"{module} is not imported within {IMPORT_S:g} s", _AGAIN
        )
    if done.returncode == 0:
        return Finding(f"import {name}", "ok", f"{time.monotonic() - began:.1f} s")
    why = last_line(done.stderr, f"Python ended with status {done.returncode}")
    return Finding(f"import {name}", "problem", why[:300], _AGAIN)


_AGAIN = "install it again in the versions of the lock file (docs/installing.md)"


def _cuda(config: Config, say: Say) -> Iterator[Finding]:
    if resolve_device(config.device) != "cuda":
        return
    say("asking torch for its GPUs")
    answer = subprocess.run(
        [sys.executable, "-c", _TORCH], capture_output=True, text=True
    ).stdout.split()
    build = answer[0] if answer else "None"
    driver = _driver_version()
    if build == "None":
        yield Finding(
            "CUDA build", "problem", "torch is a build without CUDA", "install the extra gpu"
        )
    elif driver is None:
        yield Finding(
            "CUDA build",
            "problem",
            f"torch is built for CUDA {build}, no driver answers",
            "install one",
        )
    else:
        # Drivers serve builds of the same major version, also newer minor ones.
        wanted = build.partition(".")[0]
        shown = f"torch for {build}, driver for {driver[0]}.{driver[1]}"
        yield held(
            "CUDA build", driver[0] >= int(wanted), shown, f"install a driver for CUDA {wanted}"
        )
    # Without a local folder the size is not known, and the memory cannot be checked.
    if len(answer) > 1 and (size := _parameters(config)):
        total = sum(map(int, answer[1:])) / 2**30 * min(1.0, config.gpus / max(1, len(answer) - 1))
        needed = size * BYTES_A_PARAMETER / 2**30
        shown = (
            f"{total:.0f} GiB on {config.gpus}, "
            f"about {needed:.0f} for weights, gradients and optimizer"
        )
        yield held("GPU memory", needed < total, shown, "more gpus, LoRA, or a smaller policy")


_TORCH = (
    "import torch; n = torch.cuda.device_count(); "
    "print(torch.version.cuda, *(torch.cuda.get_device_properties(i).total_memory for i in range(n)))"
)


def _driver_version() -> tuple[int, int] | None:
    """Return the newest CUDA version that the driver supports."""
    number = ctypes.c_int(0)
    try:
        status = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    except OSError:
        return None
    return (number.value // 1000, number.value % 1000 // 10) if status == 0 else None


def _parameters(config: Config) -> int:
    """Return the policy's number of parameters by the size of its files.

    0 without a local folder.
    """
    try:
        folder = Path(resolve(config.policy.path))
    except ConfigError:
        return 0
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) // 2  # bf16


def _policy(config: Config, say: Say) -> Iterator[Finding]:
    try:
        path = resolve(config.policy.path)
    except ConfigError as error:
        yield Finding("policy", "problem", str(error))
        return
    if Path(path).is_dir():
        yield Finding("policy", "ok", path)
        return
    try:
        from huggingface_hub import auth_check, try_to_load_from_cache
        from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
    except ImportError:
        return
    say(f"asking huggingface.co for {path}")
    try:
        auth_check(path)
    except GatedRepoError:
        yield Finding(
            "policy",
            "problem",
            f"{path} is gated",
            "accept its terms on huggingface.co, then set HF_TOKEN",
        )
    except RepositoryNotFoundError:
        yield Finding(
            "policy", "problem", f"there is no {path} on huggingface.co that this token may see"
        )
    except Exception as error:  # offline, or any other network error
        cached = isinstance(try_to_load_from_cache(path, "config.json"), str)
        silent = f"{path}: huggingface.co did not answer ({type(error).__name__})"
        yield Finding(
            "policy",
            "ok" if cached else "note",
            f"{silent}, but it is in the cache" if cached else silent,
        )
    else:
        yield Finding("policy", "ok", f"{path}, which may be downloaded")


def _loggers(config: Config) -> Iterator[Finding]:
    for name in config.train.loggers:
        if not _installed(name):
            yield Finding(f"logger {name}", "problem", "not installed", f"pip install {name}")
            continue
        variable, machine = _KEYS.get(name, ("", ""))
        known = not variable or bool(os.environ.get(variable)) or _in_netrc(machine)
        advice = f"set {variable}, or log in with `{name} login`"
        yield held(f"logger {name}", known, "ready" if known else "has no key", advice)


def _in_netrc(machine: str) -> bool:
    try:
        return bool(machine) and netrc().authenticators(machine) is not None
    except (OSError, NetrcParseError):
        return False
