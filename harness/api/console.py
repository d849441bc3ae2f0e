"""A console for untrusted text: models, tools and files may contain terminal controls."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from harness.util.formatting import printable


class PlainConsole(Console):
    """Escape control characters in all text, and show `[tags]` and `:emoji:` in it unchanged."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, soft_wrap=True, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Convert every printed text, including cells of tables and labels of trees."""
        return super().render_str(printable(text), **options)

    def on_broken_pipe(self) -> None:
        """End with status 0 if the reader closes the pipe (`| head`), which is no failure."""
        try:
            super().on_broken_pipe()
        except SystemExit:
            raise SystemExit(0) from None
