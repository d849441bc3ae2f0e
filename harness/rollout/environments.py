"""Separate environments of plugins, which `harness plugins sync` creates and runners use."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import harness
from harness.config import cache_dir
from harness.errors import EnvironmentProblem, find_uv, last_line

_RECORD = "environment.json"


def python_for(plugin_name: str) -> str:
    """Return the interpreter that runs a plugin's agents: its own environment's, else this one."""
    try:
        record = json.loads((_folder(plugin_name) / _RECORD).read_text(encoding="utf-8"))
        python = str(record["python"])
    except (OSError, ValueError, KeyError, TypeError):
        return sys.executable
    return python if Path(python).is_file() else sys.executable


def own_environment() -> str:
    """Return the plugin to which the environment of this process belongs; empty if to none."""
    folder = Path(sys.prefix).parent
    return folder.name if folder == _folder(folder.name) else ""


def sync(plugin_name: str, requirements: Sequence[str]) -> str:
    """Build an environment for one plugin and have its runners use it.

    Args:
        requirements: Packages to install, including harness, as pip requirements or folders.

    Returns:
        The new environment's interpreter.

    Raises:
        EnvironmentProblem: It could not be built; the message names the step that failed. An older
            environment is gone then, and the plugin runs in this one.
    """
    folder = _folder(plugin_name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    python = folder / "venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    uv = find_uv()
    if uv:
        _run([uv, "venv", "--quiet", "--python", sys.executable, str(folder / "venv")], plugin_name)
        overrides = str(Path(harness.__file__).with_name("overrides.txt"))
        install = [
            uv,
            "pip",
            "install",
            "--quiet",
            "--overrides",
            overrides,
            "--python",
            str(python),
        ]
    else:
        _run([sys.executable, "-m", "venv", str(folder / "venv")], plugin_name)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    arguments = []
    for item in requirements:
        # A folder is installed editable: a change to the plugin needs no further sync.
        arguments += ["-e", item] if Path(item).is_dir() else [item]
    _run([*install, *arguments], plugin_name)
    _run([str(python), "-c", "import harness.rollout.worker"], plugin_name)
    record = {"plugin": plugin_name, "python": str(python), "requirements": list(requirements)}
    (folder / _RECORD).write_text(json.dumps(record, indent=2), encoding="utf-8")
    return str(python)


def drop(plugin_name: str) -> bool:
    """Remove a plugin's environment; its runners use this one again. Return whether it existed."""
    folder = _folder(plugin_name)
    existed = folder.is_dir()
    shutil.rmtree(folder, ignore_errors=True)
    return existed


def _folder(plugin_name: str) -> Path:
    return cache_dir() / "environments" / plugin_name


def _run(command: list[str], plugin_name: str) -> None:
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    if done.returncode:
        reason = last_line(done.stderr or done.stdout, f"status {done.returncode}")
        raise EnvironmentProblem(
            f"no environment for plugin {plugin_name!r}: {' '.join(command[:4])} failed: {reason}"
        )
