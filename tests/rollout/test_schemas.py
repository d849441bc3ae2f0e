"""Schemas that others wrote neither hang this process nor make it read what they name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.contracts.environments import Tool
from harness.rollout.json_values import misfit
from harness.util.json_schema import SchemaFault, check_schema, find_mismatch

NESTED = "^(a+)+$"
TEXT = "a" * 5_000 + "b"


def doubled(keyword: str, levels: int = 40) -> dict[str, Any]:
    """Return a schema that refers to the next one twice, level by level."""
    definitions: dict[str, Any] = {
        f"d{level}": {keyword: [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(levels)
    }
    return {"$defs": {**definitions, f"d{levels}": {"type": "string"}}, "$ref": "#/$defs/d0"}


COSTLY = {
    "a pattern": ({"properties": {"text": {"pattern": NESTED}}}, {"text": TEXT}),
    "names of properties": ({"patternProperties": {NESTED: {}}}, {TEXT: 1}),
    "other names": (
        {"patternProperties": {NESTED: {}}, "additionalProperties": False},
        {TEXT: 1},
    ),
    "references that double": (doubled("anyOf"), {}),
    "items compared in pairs": ({"uniqueItems": True}, [{"a": one} for one in range(50_000)]),
}


@pytest.mark.parametrize("case", COSTLY)
def test_a_costly_schema_ends(case: str) -> None:
    """In a process of its own, since matching that never ends cannot be interrupted."""
    schema, instance = COSTLY[case]
    code = """
import json, sys
from harness.util.json_schema import SchemaFault, find_mismatch
schema, instance = json.load(sys.stdin)
try:
    print("mismatch" if find_mismatch(instance, schema) else "fits")
except SchemaFault as fault:
    print(fault)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps([schema, instance]),
        capture_output=True,
        text=True,
        timeout=100,
    )
    expected = {
        "a pattern": "mismatch",
        "names of properties": "fits",
        "other names": "mismatch",
        "references that double": "takes more than 100,000 steps to check",
        "items compared in pairs": "takes more than 100,000 steps to check",
    }
    assert (done.stdout.strip(), done.returncode) == (expected[case], 0), done.stderr


@pytest.mark.parametrize("keyword", ["pattern", "patternProperties"])
@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1"])
def test_a_pattern_that_is_not_linear_is_refused_by_name(keyword: str, pattern: str) -> None:
    schema = {keyword: pattern if keyword == "pattern" else {pattern: {}}}
    with pytest.raises(SchemaFault, match="cannot be matched in linear time") as refused:
        check_schema({"properties": {"text": schema}})
    assert repr(pattern) in str(refused.value)


def test_a_property_called_pattern_is_no_pattern() -> None:
    schema = {
        "properties": {"pattern": {"type": "string"}, "other": {"enum": [{"pattern": "("}]}},
        "default": {"$ref": "http://example.com"},
    }
    check_schema(schema)
    assert find_mismatch({"pattern": "(", "other": {"pattern": "("}}, schema) is None


def test_references_are_never_fetched(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"const": "a secret"}')
    schema = {"properties": {"text": {"$ref": secret.as_uri()}}}
    for refuse in (lambda: check_schema(schema), lambda: find_mismatch({"text": ""}, schema)):
        with pytest.raises(SchemaFault, match="never fetched") as refused:
            refuse()
        assert secret.as_uri() in str(refused.value) and "a secret" not in str(refused.value)


def test_references_within_a_schema_hold() -> None:
    schema = {
        "$id": "https://example.com/own",
        "$defs": {"word": {"type": "string"}},
        "properties": {
            "one": {"$ref": "#/$defs/word"},
            "two": {"$ref": "https://example.com/own#/$defs/word"},
        },
    }
    check_schema(schema)
    assert find_mismatch({"one": "a", "two": "b"}, schema) is None
    found = find_mismatch({"one": "a", "two": 2}, schema)
    assert found is not None and found.place == "two"


def test_a_reference_to_nothing_or_to_itself_is_a_fault() -> None:
    with pytest.raises(SchemaFault, match="does not define"):
        find_mismatch({}, {"$ref": "#/nothing"})
    with pytest.raises(SchemaFault, match="without an end"):
        find_mismatch({}, {"$ref": "#"})


def test_names_that_a_pattern_matches_are_no_additional_ones() -> None:
    schema = {
        "properties": {"known": {}},
        "patternProperties": {"^x-": {"type": "integer"}},
        "additionalProperties": False,
    }
    assert find_mismatch({"known": 1, "x-a": 2}, schema) is None
    found = find_mismatch({"known": 1, "x-a": 2, "other": 3}, schema)
    assert found is not None and "'other' was unexpected" in found.message


def test_arguments_that_cannot_be_checked_are_bad_arguments() -> None:
    tool = Tool("keep", "Keep.", {"type": "object", "properties": {"texts": {"uniqueItems": True}}})
    given = {"texts": [{"a": one} for one in range(5_000)]}
    assert misfit(given, tool) == (
        "cannot be checked: the tool's schema takes more than 100,000 steps to check"
    )
