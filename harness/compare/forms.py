"""The formats that a comparison is printed in, by name."""

from __future__ import annotations

from typing import Literal, get_args

from harness.errors import UserError

Format = Literal["table", "md", "csv", "json", "latex", "html"]
FORMATS: tuple[Format, ...] = get_args(Format)


def known_format(form: str) -> Format:
    """A format that comparisons have.

    Raises:
        UserError: It is none.
    """
    for known in FORMATS:
        if form == known:
            return known
    raise UserError(f"no format called {form!r}. There are: {', '.join(FORMATS)}")
