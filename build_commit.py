"""Build hook: the commit that a wheel is made of goes into it, as `harness/commit.json`, for its runs' records."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):  # type: ignore[type-arg]
    """Writes nothing where there is no checkout: an sdist carries the file of its own making."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it builds a target."""
        if version == "editable" or not (Path(self.root) / ".git").exists():
            return
        made = Path(self.directory) / "commit.json"
        made.parent.mkdir(parents=True, exist_ok=True)
        dirty = bool(self._git("status", "--porcelain", "--untracked-files=no"))
        made.write_text(json.dumps({"hash": self._git("rev-parse", "HEAD"), "dirty": dirty}))
        build_data["force_include"][str(made)] = "harness/commit.json"

    def _git(self, *arguments: str) -> str:
        command = ["git", "-C", self.root, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
