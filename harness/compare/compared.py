"""A comparison as Python and notebooks have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.compare.formats import html_tables, inline, render
from harness.compare.forms import known_format
from harness.compare.keys import Comparison
from harness.compare.layout import tables
from harness.compare.references import Reference
from harness.compare.sentences import sentences
from harness.wording import printable

if TYPE_CHECKING:
    import pandas as pd


class Compared:
    """What a comparison found.

    Attributes:
        data: All of it, as plain data: what `--format json` has (docs/comparisons.md).
        references: Figures published by others.
    """

    def __init__(self, data: Comparison, references: Sequence[Reference] = ()) -> None:
        self.data = data
        self.references = list(references)

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Its tables by name, cells as they are shown: `accuracy`, `learning`, ..."""
        import pandas as pd

        found = tables(self.data, self.references)
        return {table.key: pd.DataFrame(table.rows, columns=table.heads) for table in found}

    def render(self, form: str) -> str:
        """The text that `harness compare --format` gives: md, csv, json, latex or html.

        Raises:
            UserError: There is no such format.
        """
        return render(self.data, known_format(form), self.references)

    def __repr__(self) -> str:
        return printable(self.render("md"))

    def _repr_html_(self) -> str:
        """What a notebook shows. All text in it is text."""
        words = "".join(f"<li>{inline(sentence)}</li>" for sentence in sentences(self.data))
        question = (
            f"<p><strong>{inline(self.data['question'])}</strong></p>"
            if self.data["question"]
            else ""
        )
        return printable(
            f"{question}{html_tables(tables(self.data, self.references))}<ul>{words}</ul>"
        )
