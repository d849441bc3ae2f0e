"""Reports of synthetic runs, and a headless browser to open them with."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def _synthetic() -> ModuleType:
    path = Path(__file__).parents[1] / "compare" / "synthetic.py"
    spec = importlib.util.spec_from_file_location("harness_synthetic_runs", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def write_run() -> Callable[..., Any]:
    """Writes one synthetic run."""
    written: Callable[..., Any] = _synthetic().write_run
    return written


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, write_run: Callable[..., Any]) -> Path:
    """Two arms of two seeds, one failed run; small enough for seconds."""
    root = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        write_run(root, "reference_sql", seed)
        write_run(
            root, "langgraph_sql", seed, accuracy=(0.3, 0.4), unscored=2, calls=2 + seed, parts=True
        )
    write_run(root, "crewai_sql", 0, status="failed")
    return root


@dataclass(frozen=True)
class Page:
    """What the browser made of a page."""

    dom: str
    console: list[str]

    def count(self, pattern: str) -> int:
        return len(re.findall(pattern, self.dom))

    def attribute(self, name: str) -> str:
        found = re.search(rf'<body[^>]*\b{name}="([^"]*)"', self.dom)
        return found.group(1) if found else ""


@pytest.fixture(scope="session")
def browse() -> Callable[..., Page]:
    """Opens a file in headless Chromium and returns its document after the scripts ran."""
    named = os.environ.get("CHROMIUM", "")
    names = [name for name in (named, "chromium", "chromium-browser", "google-chrome") if name]
    binary = next((path for name in names if (path := shutil.which(name))), None)
    if binary is None:
        pytest.skip("no Chromium here: install chromium, or name one in CHROMIUM")

    def opened(path: Path, fragment: str = "", *, dark: bool = False, width: int = 1280) -> Page:
        command = [
            binary,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--enable-logging=stderr",
            "--dump-dom",
        ]
        command += ["--virtual-time-budget=8000", f"--window-size={width},1400"]
        command += [
            "--host-resolver-rules=MAP * ~NOTFOUND"
        ]  # whatever is not in the file cannot be had
        if dark:
            command.append("--blink-settings=preferredColorScheme=0")
        address = f"{path.as_uri()}{'#' + fragment if fragment else ''}"
        done = subprocess.run(
            [*command, address], capture_output=True, text=True, timeout=90, check=False
        )
        if not done.stdout.strip():
            pytest.skip(
                f"this Chromium does not start headless: {done.stderr.strip().splitlines()[-1:]}"
            )
        return Page(done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line])

    return opened
