"""Provenance of a run: its code, libraries, machine and first policy."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sqlite3
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import harness
from harness.policies import revision_of
from harness.policies.demonstrations import FILE as DEMONSTRATIONS
from harness.runs.schema import Commit, Hardware

LIBRARIES = (
    "agentlightning",
    "verl",
    "torch",
    "transformers",
    "vllm",
    "ray",
    "TransferQueue",
    "tensordict",
    "openai",
    "opentelemetry-sdk",
)


def library_versions() -> dict[str, str | None]:
    """Versions of the libraries that decide a run.

    SQLite is there because its versions give different last digits of sums and means.
    """
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def hardware(device: str) -> Hardware:
    """Return the machine: processor, cores, memory, accelerators."""
    import psutil

    data: Hardware = {
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": available_cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
    }
    if device == "cuda":
        import torch

        count = torch.cuda.device_count()
        data["gpus"] = [torch.cuda.get_device_name(index) for index in range(count)]
        data["cuda"] = torch.version.cuda
    return data


def available_cores() -> int | None:
    """Return the number of logical processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def load() -> float | None:
    """Return the load average over a minute per processor of the machine; None if unknown.

    The load counts all processes of the machine, so all its processors count, too.
    """
    try:
        return round(os.getloadavg()[0] / (os.cpu_count() or 1), 2)
    except (AttributeError, OSError):
        return None


def gpu_service() -> str:
    """Return `mps` if the pipe of NVIDIA's Multi-Process Service is there, else nothing.

    GPU programs look for it in the folder that `CUDA_MPS_PIPE_DIRECTORY` names. A service that was
    killed may leave its pipe behind.
    """
    folder = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps")
    return "mps" if (folder / "control").exists() else ""


def commit() -> Commit | None:
    """Return the commit of the source tree or the wheel, and whether it had uncommitted changes."""
    try:
        if Path(_git("rev-parse", "--show-toplevel")) == _ROOT:
            dirty = bool(_git("status", "--porcelain", "--untracked-files=no"))
            current: Commit = {"hash": _git("rev-parse", "HEAD"), "dirty": dirty}
            return current | {"changes": changes("HEAD")} if dirty else current
    except (OSError, subprocess.SubprocessError):
        pass
    # A wheel carries the commit that it was built from.
    built = Path(harness.__file__).with_name("commit.json")
    if not built.is_file():
        return None
    of_wheel: Commit = json.loads(built.read_text())
    return of_wheel


def changes(since: str) -> str:
    """Return a hash of the changes to a run's code since a commit; empty if there are none.

    Raises:
        OSError: git is not installed.
        SubprocessError: git does not know the commit.
    """
    difference = _git("diff", since, "--", *_OF_RUNS)
    return hashlib.sha256(difference.encode()).hexdigest()[:16] if difference else ""


_ROOT = Path(harness.__file__).parent.parent
_OF_RUNS = (
    "harness",
    "plugins",
    "contrib",
    ":(exclude)harness/cli",
    ":(exclude)harness/compare",
    ":(exclude)harness/parity",
    ":(exclude)plugins/report",
    ":(exclude)plugins/study",
    ":(exclude)contrib/power_analysis",
    ":(exclude)contrib/watch",
)


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(_ROOT), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=30, check=True
    ).stdout.strip()


_OF_A_POLICY = {".safetensors", ".bin", ".json", ".jinja", ".py"}
"""Suffixes of weights, configuration, and code that `policy.trust_remote_code` runs."""
_OLDER_TOKENIZERS = {".txt", ".model", ".tiktoken"}
"""Suffixes that are read only without a `tokenizer.json`."""
_ABOUT_A_POLICY = {
    "manifest.json",
    "export.json",
    "LICENSE.txt",
    "requirements.txt",
    DEMONSTRATIONS,
}
"""Files that do not change the model. Demonstrations have an entry of their own in the identity."""


def model_hash(path: str) -> str:
    """Return a hash over a local policy's files.

    A policy of Hugging Face is identified by id and commit.
    """
    folder = Path(path)
    if not folder.is_dir():
        return path
    if downloaded := revision_of(folder):
        return downloaded
    digest = hashlib.sha256()
    # Where there is a `tokenizer.json`, loaders ignore older tokenizers' files.
    decides = _OF_A_POLICY | (set() if (folder / "tokenizer.json").is_file() else _OLDER_TOKENIZERS)
    for file in sorted(folder.iterdir()):
        if file.suffix in decides and file.name not in _ABOUT_A_POLICY:
            digest.update(file.name.encode() + b"\0")
            # In blocks: weights may be larger than the memory.
            with file.open("rb") as stream:
                for block in iter(lambda: stream.read(1 << 20), b""):
                    digest.update(block)
    return digest.hexdigest()[:16]


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()
