"""How `medical` is made: the same rows each time, the same bytes under the same pyarrow."""

from __future__ import annotations

import hashlib
import io
import json

import pyarrow
import pyarrow.parquet
import pytest

from harness_sql.tasks.medical import DATA
from recipes.medical.generate import generate


@pytest.fixture(scope="module")
def made() -> dict[str, bytes]:
    return generate()


def test_the_bundled_files_are_what_the_generator_writes(made: dict[str, bytes]) -> None:
    shipped = {file.name: file.read_bytes() for file in DATA.iterdir() if file.is_file()}
    manifest = json.loads(shipped["manifest.json"])
    assert shipped.keys() == made.keys()
    assert {
        name: hashlib.sha256(shipped[name]).hexdigest() for name in manifest["sha256"]
    } == manifest["sha256"]
    assert made["database.json"] == shipped["database.json"]
    for name in ("train.parquet", "val.parquet"):
        tables = [pyarrow.parquet.read_table(io.BytesIO(files[name])) for files in (made, shipped)]
        assert tables[0].equals(tables[1])
    if pyarrow.__version__ == manifest["pyarrow"]:
        assert made == shipped
