"""Columns of older runs under the names that they have today."""

from __future__ import annotations

import json
from typing import Any

OLDER = {"db_id": "cluster", "first_sql": "first_answer", "turns": "tool_calls"}
"""Older name -> name, of episode columns."""


def tool_calls(text: str | None) -> list[dict[str, Any]]:
    """The tool calls of an episode from the column's JSON, `tool`, `arguments`, `text`, `ok` and times of each.

    Older runs knew one tool, whose argument stands by itself.
    """
    found: list[dict[str, Any]] = json.loads(text) if text else []
    return [
        call if "arguments" in call else {**call, "tool": "query_database", "arguments": {"sql": call["sql"]}}
        for call in found
    ]
