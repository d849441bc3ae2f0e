from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness_sql.sqlite.evaluator import forget
from harness_sql.sqlite.sandbox import close_connections

REPO = Path(__file__).resolve().parents[2]
MakeDatabase = Callable[..., Path]

SINGERS = """
CREATE TABLE country (code TEXT PRIMARY KEY, title TEXT);
CREATE TABLE singer (
  singer_id INTEGER PRIMARY KEY, name TEXT, country TEXT REFERENCES country (code), age INTEGER, score REAL
);
INSERT INTO country VALUES ('CL', 'Chile'), ('PE', 'Peru');
INSERT INTO singer VALUES
  (1, 'Joe', 'CL', 52, 2.0), (2, 'Rose', 'PE', 41, 3.5),
  (3, 'Tribal', 'PE', 25, 1.0), (4, 'Rose', 'PE', 41, 3.5);
"""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "spider: needs the Spider archive")


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    forget()
    yield
    forget()
    close_connections()


@pytest.fixture
def make_database(tmp_path: Path) -> MakeDatabase:
    """Builds `<name>/<name>.sqlite` from a script."""

    def make(script: str = SINGERS, name: str = "singers", file: str | None = None) -> Path:
        path = tmp_path / name / f"{file or name}.sqlite"
        path.parent.mkdir(exist_ok=True)
        connection = sqlite3.connect(path)
        connection.executescript(script)
        connection.close()
        return path

    return make


@pytest.fixture
def singers(make_database: MakeDatabase) -> Path:
    return make_database()


@pytest.fixture(scope="session")
def spider_source() -> Path:
    """The official archive or folder."""
    named = os.environ.get("HARNESS_SPIDER_SOURCE") or os.environ.get("VERL_SPIDER_DATA_DIR")
    path = Path(named) if named else REPO.parent / "shared" / "data" / "spider_data.zip"
    if not path.exists():
        pytest.skip(f"no Spider archive at {path}; set HARNESS_SPIDER_SOURCE")
    return path
