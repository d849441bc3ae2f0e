"""What older runs hold, under the names and with the keys of today."""

from __future__ import annotations

import json
from typing import Any

OLDER = {"db_id": "cluster", "first_sql": "first_answer", "turns": "tool_calls"}
"""Older name -> name, of episode columns."""
LATER = {"program": "self_correcting_sql"}
"""Keys of the identity that older runs do not have, and what they all were."""


def tool_calls(text: str | None) -> list[dict[str, Any]]:
    """The tool calls of an episode from the column's JSON, `tool`, `arguments`, `text`, `ok` and times of each.

    Older runs knew one tool, whose argument stands by itself.
    """
    found: list[dict[str, Any]] = json.loads(text) if text else []
    return [
        call if "arguments" in call else {**call, "tool": "query_database", "arguments": {"sql": call["sql"]}}
        for call in found
    ]
