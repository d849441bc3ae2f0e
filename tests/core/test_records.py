"""Records are of the types that they are documented with."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from pydantic import TypeAdapter

from harness.runs import record_types, rows, schema
from harness.runs.folder import RunFolder
from harness.runs.tables import _TYPES
from strictness import strict_adapter

REPO = Path(__file__).resolve().parents[2]
PAGE = run_path(str(REPO / "tools" / "fields.py"))
PUBLISHED = sorted((REPO / "results").rglob("run.json"))


@pytest.fixture(scope="module")
def strict() -> TypeAdapter[Any]:
    """Refuses keys that the model does not name."""
    return strict_adapter(schema.RunRecord, PAGE["OF_RECORDS"])


def test_the_page_is_made_of_the_model() -> None:
    written = (REPO / "docs" / "records.md").read_text(encoding="utf-8")
    assert written == PAGE["records"](), "run: python tools/fields.py"


def test_every_published_record_opens_and_is_of_the_model(
    strict: TypeAdapter[Any], tmp_path: Path
) -> None:
    records = [*PUBLISHED]
    for number, archive in enumerate(sorted((REPO / "results").rglob("runs.tar.xz"))):
        with tarfile.open(archive) as packed:
            for member in packed:
                if Path(member.name).name == "run.json":
                    packed.extract(member, tmp_path / str(number), filter="data")
    records += sorted(tmp_path.rglob("run.json"))
    assert len(records) > 550
    for path in records:
        strict.validate_python(RunFolder(path.parent).read())


def test_a_field_that_is_not_documented_is_seen(strict: TypeAdapter[Any]) -> None:
    record = json.loads(PUBLISHED[0].read_text()) | {"surprise": 1}
    with pytest.raises(ValueError, match="surprise"):
        strict.validate_python(record)


def test_every_column_and_field_says_what_it_is() -> None:
    for row in (rows.Episode, rows.Call):
        assert set(record_types.columns(row).values()) <= set(_TYPES)
    for part in (*PAGE["OF_RECORDS"], rows.Episode, rows.Call, rows.LoggedStep):
        assert part.__doc__ and all(meaning for _, _, meaning in PAGE["fields"](part)), part
