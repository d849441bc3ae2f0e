"""The recipe of task set `pocket`: what is bundled is what it makes."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.pocket.domain import pluralize
from recipes.pocket.world import same_rows

REPO = Path(__file__).resolve().parents[2]


def test_the_command_finds_the_bundled_bytes_unchanged() -> None:
    command = [sys.executable, "-m", "recipes.pocket.generate", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPO)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_nothing_that_is_installed_imports_a_recipe() -> None:
    for file in (
        *(REPO / "harness").rglob("*.py"),
        *REPO.glob("plugins/*/src/**/*.py"),
        *REPO.glob("contrib/*/src/**/*.py"),
    ):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert "recipes" not in {name.partition(".")[0] for name in names}, (
                f"{file}:{node.lineno}"
            )


@pytest.mark.parametrize(
    ("one", "many"),
    [("city", "cities"), ("branch", "branches"), ("day", "days"), ("ship", "ships")],
)
def test_plurals(one: str, many: str) -> None:
    assert pluralize(one) == many


def test_results_are_compared_as_multisets_unless_ordered() -> None:
    assert same_rows([(1, "a"), (2, "b")], [("b", 2), ("a", 1)], ordered=False)
    assert not same_rows([(1,), (2,)], [(2,), (1,)], ordered=True)
    assert not same_rows([(1,), (1,)], [(1,)], ordered=False)
