"""AutoGen converts arguments to Python types; the tool gets them as JSON has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autogen_core import CancellationToken

from harness.contracts.environments import Tool
from harness_autogen_sql.tools_idiomatic import ToolboxTool

BOOK = Tool(
    "book",
    "Book a table.",
    {
        "type": "object",
        "properties": {
            "when": {"type": "string", "format": "date-time"},
            "guests": {"type": "integer"},
        },
        "required": ["when"],
    },
)


class RecordingToolbox:
    """Keeps the arguments of calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Mapping[str, Any]]] = []

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        self.calls.append((tool, arguments))
        return "booked"


async def test_a_date_reaches_the_tool_as_text() -> None:
    toolbox: Any = RecordingToolbox()
    given = {"when": "2020-01-01T12:00:00+02:00", "guests": 2}
    shown = await ToolboxTool(BOOK, toolbox).run_json(given, CancellationToken())
    assert (shown, toolbox.calls) == ("booked", [("book", given)])
