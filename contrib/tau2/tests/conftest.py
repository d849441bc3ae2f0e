"""Data of tau2: of a small domain that the tests have, and of the wheel where it was fetched."""

from __future__ import annotations

import gzip
import hashlib
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from harness import Task, TaskSetError
from harness.records import JSON
from harness_tau2.data import Manifest, default_folder, prepare

LIBRARY = Path(__file__).with_name("library")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A wheel with the domain `library`, and its SHA-256."""
    file = tmp_path_factory.mktemp("wheel") / "inspect_evals-0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for one in sorted(LIBRARY.rglob("*")):
            name = one.relative_to(LIBRARY).as_posix()
            if one.name == "db.json":
                archive.writestr(f"{name}.gz", gzip.compress(one.read_bytes(), mtime=0))
            elif one.is_file() and "__pycache__" not in one.parts:
                archive.write(one, name)
    return file, hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture(scope="session")
def library(wheel: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that is made of it."""
    folder = tmp_path_factory.mktemp("data") / "tau2"
    prepare(folder, *wheel, ["library"])
    return folder


@pytest.fixture(scope="session")
def fetched() -> Path:
    """The folder of the wheel that is published."""
    try:
        Manifest.read(default_folder())
    except TaskSetError:
        pytest.skip(
            f"tau2-bench's data is not in {default_folder()}: `harness data tau2` fetches it (21 MB)"
        )
    return default_folder()


@pytest.fixture(scope="session")
def gold_of() -> Callable[[Task], list[tuple[str, Mapping[str, JSON]]]]:
    """A task's gold actions, of the wheel's own file."""

    def found(task: Task) -> list[tuple[str, Mapping[str, JSON]]]:
        domain, id = task.id.split("/")
        file = Path(
            task.data["tau2"]["folder"], "inspect_evals/tau2/data/domains", domain, "tasks.json"
        )
        row = next(row for row in json.loads(file.read_text(encoding="utf-8")) if row["id"] == id)
        return [
            (action["name"], action["arguments"])
            for action in row["evaluation_criteria"]["actions"]
        ]

    return found
