"""Turns of phrase that are not used: the field has a word for each."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
BANNED = {
    "doubt beside": "with confidence intervals",
    "yardstick": "reference",
    "likeness": "similarity",
    "held against": "compared with",
    "nobody vouches": "untrusted",
    "infinite or none": "infinite or NaN",
    "who is paid what": "credit assignment",
    "nobody's zero": "leaves the rollout unscored",
    "part at step": "first divergent step",
    "told apart at best": "smallest detectable difference",
    "instrument level": "A/A check",
    "nothing of it is left": "the gain vanishes at an equal token budget",
}
"""What it was, and what it is now."""


def texts() -> list[str]:
    known = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.yaml"], cwd=REPO, capture_output=True, text=True
    )
    if known.returncode:
        pytest.skip("no checkout")
    return [
        name
        for name in known.stdout.splitlines()
        if name != "CHANGELOG.md" and Path(__file__).name not in name
    ]


def test_banned_turns_are_in_no_text() -> None:
    banned = re.compile("|".join(map(re.escape, BANNED)), re.IGNORECASE)
    found = [
        f"{name}:{number}: {match.group()!r}; say: {BANNED[match.group().lower()]}"
        for name in texts()
        for number, line in enumerate((REPO / name).read_text(encoding="utf-8").splitlines(), 1)
        if (match := banned.search(line))
    ]
    assert not found, "\n".join(found)
