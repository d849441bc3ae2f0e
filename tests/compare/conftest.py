"""Synthetic runs for comparisons."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .synthetic import write_run as _write_run


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Any]:
    """Writes a run below `tmp_path / "runs"`."""

    def written(*arguments: Any, **options: Any) -> Any:
        return _write_run(tmp_path / "runs", *arguments, **options)

    return written


@pytest.fixture(scope="session")
def three_arms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds each: the reference, one as good (the same draws), and one far worse; one run failed.

    Batches are verl's own, where more calls mean more optimizer steps.
    """
    root = tmp_path_factory.mktemp("three")
    stock: dict[str, Any] = {"val_limit": 120, "overrides": ["train.batching=verl"]}
    for seed in range(3):
        _write_run(root, "reference_sql", seed, **stock)
        _write_run(root, "langgraph_sql", seed, **stock, calls=2)
        _write_run(root, "crewai_sql", seed, **stock, accuracy=(0.3, 0.05), unscored=3)
    _write_run(root, "autogen_sql", 0, **stock, status="failed")
    return root
