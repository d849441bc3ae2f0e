"""The output formats of a comparison, by name."""

from __future__ import annotations

from typing import Literal, get_args

from harness.errors import UserError

Format = Literal["table", "md", "csv", "json", "latex", "html"]
FORMATS: tuple[Format, ...] = get_args(Format)


def known_format(form: str) -> Format:
    """Return the format with this name.

    Raises:
        UserError: No format has this name.
    """
    for known in FORMATS:
        if form == known:
            return known
    raise UserError(f"no format called {form!r}. There are: {', '.join(FORMATS)}")
