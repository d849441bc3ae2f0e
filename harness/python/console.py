"""A console that shows text of others harmlessly: a model, a tool or a file may hold what a terminal would obey."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from harness.wording import printable


class PlainConsole(Console):
    """Escapes control characters in all text, and takes neither `[tags]` nor `:emoji:` in it for its own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, soft_wrap=True, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Every text that is printed, cells of tables and labels of trees included."""
        return super().render_str(printable(text), **options)

    def on_broken_pipe(self) -> None:
        """Whoever reads has had enough (`| head`): that is no failure, so the status is 0."""
        try:
            super().on_broken_pipe()
        except SystemExit:
            raise SystemExit(0) from None
