"""The result of a comparison for Python and notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.compare.format_names import known_format
from harness.compare.formats import html_items, html_tables, inline, render
from harness.compare.keys import Comparison
from harness.compare.layout import tables
from harness.compare.references import Reference
from harness.compare.sentences import sentences
from harness.util.formatting import printable

if TYPE_CHECKING:
    import pandas as pd


class Compared:
    """The result of a comparison.

    Attributes:
        data: The whole comparison as plain data, as in `--format json` (docs/comparisons.md).
        references: Figures published by others.
    """

    def __init__(self, data: Comparison, references: Sequence[Reference] = ()) -> None:
        self.data = data
        self.references = list(references)

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the tables by name, with cells as text: `accuracy`, `learning`, ..."""
        import pandas as pd

        frames = {}
        for table in tables(self.data, self.references):
            frames[table.key] = pd.DataFrame(table.rows, columns=table.heads)
        return frames

    def render(self, form: str) -> str:
        """Return the text of `harness compare --format`: md, csv, json, latex or html.

        Raises:
            UserError: The format is unknown.
        """
        return render(self.data, known_format(form), self.references)

    def __repr__(self) -> str:
        return printable(self.render("md"))

    def _repr_html_(self) -> str:
        """Return HTML for a notebook, with all text escaped."""
        words = html_items(sentences(self.data))
        question = ""
        if self.data["question"]:
            question = f"<p><strong>{inline(self.data['question'])}</strong></p>"
        shown = html_tables(tables(self.data, self.references))
        return printable(f"{question}{shown}<ul>{words}</ul>")
