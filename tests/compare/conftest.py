"""Synthetic runs for comparisons."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from synthetic import write_run as _write_run


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Any]:
    """Writes a run below `tmp_path / "runs"`."""

    def written(*arguments: Any, **options: Any) -> Any:
        return _write_run(tmp_path / "runs", *arguments, **options)

    return written


@pytest.fixture(scope="session")
def three_arms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds each: the reference, one as good (the same draws), and one far worse; one run failed."""
    root = tmp_path_factory.mktemp("three")
    for seed in range(3):
        _write_run(root, "reference_sql", seed, val_limit=120)
        _write_run(root, "langgraph_sql", seed, val_limit=120, calls=2)
        _write_run(root, "crewai_sql", seed, val_limit=120, accuracy=(0.3, 0.05), unscored=3)
    _write_run(root, "autogen_sql", 0, val_limit=120, status="failed")
    return root
