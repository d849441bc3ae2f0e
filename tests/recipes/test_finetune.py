"""One recipe fine-tunes any policy: here the bundled one, two steps, as a process of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.policies import resolve

pytest.importorskip("torch")
COMMAND = [sys.executable, "-m", "recipes.finetune", "--on", "pocket", "--steps", "2", "--limit", "2", "--workers", "1"]
COMMAND += ["--batch-tokens", "1024", "--blocks-per-group", "1"]


def test_a_fine_tuned_policy_has_a_name_and_a_pedigree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path))
    done = subprocess.run([*COMMAND, "--base", "pocket-sql", "--name", "mine"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    folder = Path(resolve("mine"))
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["policy"] == "mine" and manifest["training"]["steps"] == 2
    base = json.loads((Path(resolve("pocket-sql")) / "manifest.json").read_text())
    assert manifest["training"]["base"] == {"policy": "pocket-sql", "revision": "", "sha256": base["sha256"]}
    assert set(manifest["measured"]["drafts_greedy"]) == {"pocket"}
    assert set(manifest["sha256"]) == {path.name for path in folder.iterdir()} - {"manifest.json"}
    again = subprocess.run([*COMMAND, "--base", "pocket-sql", "--name", "mine"], capture_output=True, text=True)
    assert again.returncode == 1 and again.stderr.splitlines()[-1].startswith(f"{folder} is there already: remove it")


def test_a_policy_of_another_chat_template_is_refused(tmp_path: Path) -> None:
    shutil.copytree(resolve("pocket-sql"), tmp_path / "other")
    for file in ("chat_template.jinja", "tokenizer_config.json"):
        path = tmp_path / "other" / file
        if path.is_file():
            path.write_text(path.read_text().replace("<|im_start|>", "[INST]"))
    command = [*COMMAND, "--base", tmp_path / "other", "--out", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].endswith("which these conversations are written in")
