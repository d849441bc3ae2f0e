"""The checks of `harness doctor`."""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import shutil
import socket
import sqlite3
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.version import Version

from harness.config import resolve_device
from harness.contracts.findings import Finding, State, held
from harness.errors import OVERRIDES, how_to_install, with_overrides
from harness.plugins import registry
from harness.training.provenance import available_cores

TRAINING = ("torch", "verl", "transformers", "ray", "TransferQueue", "tensordict")
_CLASHES = (
    (
        "opentelemetry-sdk",
        "1.45",
        "agentlightning 0.3.0 loses every span: pip install 'opentelemetry-sdk<1.45'",
    ),
    ("agentlightning", "0.3.1", "1.x has no store or runners: pip install agentlightning==0.3.0"),
    ("verl", "0.10", "harness is written for verl 0.9.1: pip install verl==0.9.1"),
    ("openai", "3", "crewai and harness need openai<3: pip install 'openai<3'"),
)
"""Distribution, first version known to break, and what to do."""


_ASKS = {"packaging": "tensordict", "rich": "crewai"}
"""The package that restricts each overridden library. Without it, pip's version works."""


def examine() -> list[Finding]:
    """Check everything that training and evaluation need, without heavy imports."""
    return [
        *_python(),
        *_libraries(),
        *_overrides(),
        *_device(),
        *_plugins(),
        *_machine(),
        *_folders(),
    ]


def _python() -> Iterator[Finding]:
    fine = (3, 11) <= sys.version_info[:2] < (3, 14)
    yield held("python", fine, platform.python_version(), "use Python 3.11, 3.12 or 3.13")
    advice = "queries that need newer SQLite will fail: use a newer Python build"
    yield held(
        "sqlite", sqlite3.sqlite_version_info >= (3, 35), sqlite3.sqlite_version, advice, "note"
    )


def _libraries() -> Iterator[Finding]:
    wanted: tuple[str, ...] = ("agentlightning", *TRAINING, "vllm", "openai", "opentelemetry-sdk")
    installed = {name: _version(name) for name in wanted}
    has_queue = bool(registry().specs("queue"))
    if not has_queue:
        advice = f"runs are compared without it. To make rollouts: {how_to_install('plugins')}"
        yield Finding("queue", "note", "not installed", advice)
    # An installation for evaluations and comparisons only is complete.
    if not any(installed[name] for name in TRAINING):
        wanted = ("agentlightning", "openai", "opentelemetry-sdk") if has_queue else ("openai",)
        works = "endpoints are measured and runs compared" if has_queue else "runs are compared"
        advice = f"{works} without it. To train: {how_to_install('cpu')}"
        yield Finding("training", "note", "not installed", advice)
    for name in wanted:
        have = installed[name]
        if have is None:
            # With some of a training's libraries, the installation is broken; without any, it is
            # meant.
            of_training = name in TRAINING and installed["verl"] is not None
            of_queue = name == "agentlightning" and has_queue
            extra = "cpu" if name in (*TRAINING, "agentlightning") else "gpu"
            advice = f"only with an extra: {how_to_install(extra)}"
            state: State = "problem" if of_training or of_queue else "note"
            yield Finding(name, state, "not installed", advice)
            continue
        clash = _clash(name, have)
        yield held(name, not clash, have, clash)


def _clash(name: str, have: str) -> str:
    """Return what a version of a library breaks; empty for a version that works."""
    for library, first, advice in _CLASHES:
        if library == name and Version(have) >= Version(first):
            return advice
    return ""


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _overrides() -> Iterator[Finding]:
    """Report libraries that an installation without harness's overrides has silently downgraded."""
    from packaging.requirements import Requirement

    for line in OVERRIDES.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        wanted = Requirement(line)
        have = _version(wanted.name)
        # An override matters only if the library that it corrects is installed.
        if have is None or _version(_ASKS[wanted.name]) is None:
            continue
        advice = f"something was installed without --overrides: {with_overrides()} '{wanted}'"
        yield held(wanted.name, wanted.specifier.contains(have, prereleases=True), have, advice)


def _device() -> Iterator[Finding]:
    if resolve_device("auto") == "cuda":
        have = importlib.util.find_spec("vllm") is not None
        yield held(
            "device", have, "CUDA", f"training on it needs vLLM: {how_to_install('gpu')}", "note"
        )
    else:
        yield Finding("device", "ok", f"CPU, {available_cores() or 1} cores")


def _plugins() -> Iterator[Finding]:
    for state in registry().states:
        release = f"{state.distribution} {state.version}"
        yield held(f"plugin {state.name}", not state.problem, release, state.problem or "")


def _machine() -> Iterator[Finding]:
    import psutil

    memory = psutil.virtual_memory()
    free = memory.available / 2**30
    shown = f"{free:.1f} GiB free of {memory.total / 2**30:.1f}"
    yield held(
        "memory",
        free >= 8,
        shown,
        "the default training takes about 8 GiB: free some memory",
        "note",
    )
    if (shm := Path("/dev/shm")).is_dir():
        free = shutil.disk_usage(shm).free / 2**30
        advice = "Ray's object store wants 1 GiB here: mount it larger (docker: --shm-size=2g)"
        yield held("shared memory", free >= 1.5, f"{free:.1f} GiB free", advice)
    # Containers and hardened machines may forbid listening, also on loopback.
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
        yield Finding("ports", "ok", "loopback ports can be opened")
    except OSError as error:
        yield Finding("ports", "problem", str(error), "allow this user to listen on 127.0.0.1")
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    yield held(
        "open files",
        soft >= 4096,
        str(soft),
        "many concurrent rollouts need more: ulimit -n 65536",
        "note",
    )


def _folders() -> Iterator[Finding]:
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    advice = "checkpoints and logs need room: free some disk, or use --runs-dir elsewhere"
    yield held("disk", free >= 5, f"{free:.1f} GiB free here", advice, "note")
    writable = os.access(Path.cwd(), os.W_OK)
    yield held(
        "run folders", writable, str(Path.cwd()), "run folders cannot be made here: use --runs-dir"
    )
