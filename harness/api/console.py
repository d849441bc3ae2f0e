"""A console for untrusted text: models, tools and files may contain terminal controls."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from harness.util.formatting import printable


class PlainConsole(Console):
    """Escape control characters in all text, and show `[tags]` and `:emoji:` in it unchanged."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            highlight=False,
            soft_wrap=True,
            markup=False,
            emoji=False,
            _environ=terminal_variables(),
            **options,
        )

    def render_str(self, text: str, **options: Any) -> Text:
        """Convert every printed text, including cells of tables and labels of trees."""
        return super().render_str(printable(text), **options)

    def on_broken_pipe(self) -> None:
        """End with status 0 if the reader closes the pipe (`| head`), which is no failure."""
        try:
            super().on_broken_pipe()
        except SystemExit:
            raise SystemExit(0) from None


def terminal_variables() -> Mapping[str, str]:
    """Return the environment without a `COLUMNS` of 0, at which rich would print nothing."""
    columns = os.environ.get("COLUMNS", "")
    if not columns.isdecimal() or int(columns) > 0:
        return os.environ
    return {name: value for name, value in os.environ.items() if name != "COLUMNS"}
