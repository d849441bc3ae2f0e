"""What installs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def uv() -> str:
    """The program that builds and installs wheels."""
    found = shutil.which("uv") or str(REPO / ".uv" / "bin" / "uv")
    if not Path(found).exists():
        pytest.skip("needs uv, which `make` puts into .uv")
    return found
