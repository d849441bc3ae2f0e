"""A comparison as a terminal table, Markdown, CSV, JSON, LaTeX or HTML."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from harness.compare import brief
from harness.compare.columns import Table
from harness.compare.format_names import Format
from harness.compare.keys import (
    Arm,
    Comparison,
    EstimateData,
    Interval,
    Learned,
    Measure,
    Pair,
)
from harness.compare.layout import tables
from harness.compare.pairs import pairs_by_arm
from harness.compare.references import Reference
from harness.compare.sentences import sentences
from harness.util.formatting import printable
from harness.util.parsing import digest

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from harness.compare.costs import Price

_NUMBER = re.compile(r"[<+-]?[\d.,]+( [\[(].*[\])])?")
_LATEX = str.maketrans(
    {
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
    }
    | {
        "^": r"\textasciicircum{}",
        "\\": r"\textbackslash{}",
        "<": r"$<$",
        ">": r"$>$",
        "|": r"$|$",
        "±": r"$\pm$",
    }
)


def render(comparison: Comparison, form: Format, references: Sequence[Reference] = ()) -> str:
    """Return the comparison as text in one of the formats for files."""
    if form == "json":
        data = {**comparison, "references": list(references)}
        return json.dumps(data, indent=2, ensure_ascii=False, default=str) + "\n"
    shown, words = tables(comparison, references), sentences(comparison)
    if form in ("md", "table"):
        head = f"# {comparison['name']}\n\n"
        if comparison["question"]:
            head += f"{comparison['question']}\n\n"
        items = ""
        for sentence in words:
            items += f"- {sentence}\n"
        return f"{head}{markdown_tables(shown)}\n{items}"
    if form == "csv":
        return _csv(comparison)
    if form == "latex":
        return _latex(_label(comparison), shown, words)
    if form == "html":
        return _html(comparison["name"], comparison["question"], shown, words)
    raise ValueError(f"{form} is not a format for files")


def show(console: Console, comparison: Comparison, references: Sequence[Reference] = ()) -> None:
    """Print the comparison to a terminal."""
    if comparison["question"]:
        console.print(comparison["question"], style="bold")
    for table in tables(comparison, references):
        show_table(console, table)
    for sentence in sentences(comparison):
        console.print(sentence, markup=False, soft_wrap=True)


def show_brief(console: Console, comparison: Comparison, price: Price | None = None) -> None:
    """Print the answer in one sentence, one table and one picture on a terminal."""
    console.print(brief.answer(comparison, price), style="bold", markup=False, soft_wrap=False)
    show_table(console, brief.table(comparison, price))
    console.print(brief.picture(comparison), markup=False, soft_wrap=True)


def brief_text(comparison: Comparison, price: Price | None = None) -> str:
    """Return the brief form as Markdown: sentence, table and picture."""
    shown = markdown_tables([brief.table(comparison, price)], heading="")
    return f"{brief.answer(comparison, price)}\n\n{shown}\n```\n{brief.picture(comparison)}\n```\n"


def show_table(console: Console, table: Table) -> None:
    """Print one table to a terminal."""
    from rich import box
    from rich.table import Table as RichTable

    title = table.title
    for columns in _fitting(table, console.width):
        shown = RichTable(
            title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD
        )
        for index in columns:
            # The first column names the row, also where the names are numbers.
            numeric = index > 0 and _numeric(table, index)
            justify: Literal["left", "right"] = "right" if numeric else "left"
            shown.add_column(table.heads[index], justify=justify, overflow="fold")
        for row in table.rows:
            # A group shows only some of the columns, and repeats those that name the row.
            cells = []
            for index in columns:
                cells.append(_styled(row[index]))
            shown.add_row(*cells)
        console.print(shown, soft_wrap=False)
        title = ""
    if table.note:
        console.print(table.note, style="dim italic", markup=False, soft_wrap=False)


def _fitting(table: Table, width: int) -> list[list[int]]:
    """Return groups of columns that fit a width, each with the columns that identify a row.

    Cells wider than half of the width are folded.
    """
    from rich.cells import cell_len

    # Every column takes 3 characters more for its border and padding, and the table 1 more.
    sizes = []
    for index, head in enumerate(table.heads):
        # Cells of a terminal, not characters: Chinese ones take two each.
        widest = cell_len(head)
        for row in table.rows:
            widest = max(widest, cell_len(row[index]))
        sizes.append(min(widest, width // 2) + 3)
    names = list(range(table.named))
    room = width - sum(sizes[: table.named]) - 1
    groups, left = [[*names]], room
    for index in range(table.named, len(sizes)):
        # A column that is wider than the terminal still gets a group: it is folded, not left out.
        if sizes[index] > left and len(groups[-1]) > table.named:
            groups.append([*names])
            left = room
        groups[-1].append(index)
        left -= sizes[index]
    return groups


def _styled(cell: str) -> str | Text:
    from rich.text import Text

    for start, style in (
        ("different", "bold yellow"),
        ("equivalent", "green"),
        ("identical", "green"),
        ("cannot", "dim"),
    ):
        if cell.startswith(start):
            return Text(printable(cell), style)
    return cell


def _numeric(table: Table, index: int) -> bool:
    """Return whether a column has numbers and, apart from cells without a value, nothing else."""
    has_number = False
    for row in table.rows:
        cell = row[index]
        # Placeholders of missing numbers, which do not show the type of the column.
        if cell in ("", "-", "baseline"):
            continue
        if not _NUMBER.fullmatch(cell):
            return False
        has_number = True
    return has_number


def markdown_tables(shown: list[Table], heading: str = "##") -> str:
    """Return the tables in Markdown, each with its title as a heading unless `heading` is empty."""
    parts = []
    for table in shown:
        lines = [f"{heading} {table.title}", ""] if heading else []
        rules = []
        for index in range(len(table.heads)):
            rules.append(" ---: " if _numeric(table, index) else " --- ")
        lines += [_markdown_row(table.heads), f"|{'|'.join(rules)}|"]
        lines += map(_markdown_row, table.rows)
        if table.note:
            lines += ["", table.note]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _markdown_row(cells: Sequence[str]) -> str:
    # A `|` or a line break would end the cell.
    escaped = [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def _csv(comparison: Comparison) -> str:
    """Return one row per arm with unrounded numbers."""
    by_arm = pairs_by_arm(comparison)
    rows = []
    # Arms have different failures and parts of a step, so the heads are those of all rows.
    heads: dict[str, None] = {}
    for arm in comparison["arms"]:
        learned = comparison["learning"]["arms"].get(arm["name"], {})
        row = _csv_row(arm, by_arm.get(arm["name"]), learned)
        rows.append(row)
        heads |= dict.fromkeys(row)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(heads), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _csv_row(arm: Arm, pair: Pair | None, learned: Mapping[Measure, Learned]) -> dict[str, object]:
    """Return the cells of an arm, by head."""
    row: dict[str, object] = {
        "arm": arm["name"],
        "agent": arm["agent"],
        "agent_match": arm["agent_match"],
        "seeds": " ".join(map(str, arm["seeds"])),
    }
    row |= _estimate("accuracy_initial", arm["accuracy_initial"])
    row |= _estimate("accuracy_final", arm["accuracy_final"])
    for measure, figures in learned.items():
        row |= _estimate(measure, figures["estimate"])
        row |= _estimate(f"{measure}_difference", figures["difference"])
    row |= _estimate("difference", pair and pair["difference"])
    # The baseline has no tests, but keeps their cells: all rows begin with the same columns.
    tested = dict(pair or {})
    for key in ("p", "p_holm", "p_equivalence_holm", "detectable", "verdict", "identical"):
        row[key] = tested.get(key)
    row["unseen_share"] = pair and pair["collapses"]["share"]
    row |= _bounds("accuracy", arm["accuracy_bounds"])
    row |= _bounds("difference", pair and pair["difference_bounds"])
    for key, value in arm.items():
        if isinstance(value, int | float):
            row[key] = value
    for part, share in arm["shares"].items():
        row[f"{part}_share"] = share
    for cause, count in arm["failures"].items():
        row[f"failures_{cause}"] = count
    return row


def _bounds(name: str, bounds: Interval | None) -> dict[str, float | None]:
    worst, best = bounds or (None, None)
    return {f"{name}_worst": worst, f"{name}_best": best}


def _estimate(name: str, estimate: EstimateData | None) -> dict[str, float | None]:
    low, high = (estimate["low"], estimate["high"]) if estimate else (None, None)
    return {name: estimate and estimate["mean"], f"{name}_low": low, f"{name}_high": high}


def _label(comparison: Comparison) -> str:
    """Return the start of the tables' labels, which identifies runs and baseline in a document."""
    parts, runs = [comparison["name"]], comparison["identity"]
    if comparison["name"] == f"{len(runs)} runs":  # without a name of its own
        parts.append(digest({"runs": sorted(runs)})[:6])
    if comparison["pairs"]:
        parts.append(comparison["baseline"])
    # LaTeX allows no spaces, underscores or signs in a label.
    plain = []
    for part in parts:
        plain.append(re.sub(r"[^A-Za-z0-9]+", "-", part).strip("-").lower())
    return "-".join(plain)


def _latex(label: str, shown: list[Table], words: list[str]) -> str:
    lines = ["% needs \\usepackage{booktabs}"]
    for table in shown:
        columns = ""
        for index in range(len(table.heads)):
            columns += "r" if _numeric(table, index) else "l"
        lines += [
            "\\begin{table}",
            "\\centering",
            "\\small",
            f"\\caption{{{table.title.translate(_LATEX)}}}",
            f"\\label{{tab:{label}-{table.key.replace('_', '-')}}}",
            f"\\begin{{tabular}}{{{columns}}}",
            "\\toprule",
            _latex_row(table.heads),
            "\\midrule",
            *map(_latex_row, table.rows),
            "\\bottomrule",
            "\\end{tabular}",
            "\\end{table}",
            "",
        ]
    for sentence in words:
        lines.append(f"% {sentence}")
    return "\n".join(lines) + "\n"


def _latex_row(cells: Sequence[str]) -> str:
    escaped = [cell.translate(_LATEX) for cell in cells]
    return " & ".join(escaped) + r" \\"


def inline(text: str) -> str:
    """Return text as HTML, with text between backticks as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text))


def html_items(sentences: Iterable[str]) -> str:
    """Return sentences as the items of an HTML list."""
    items = ""
    for sentence in sentences:
        items += f"<li>{inline(sentence)}</li>"
    return items


def html_tables(shown: list[Table]) -> str:
    """Return the tables as HTML elements, each in a box that scrolls sideways."""
    parts = []
    for table in shown:
        heads = body = ""
        for index, head in enumerate(table.heads):
            classes = _classes(table, index, head)
            heads += f'<th scope="col"{classes}>{html.escape(head)}</th>'
        for row in table.rows:
            body += "<tr>"
            for index, cell in enumerate(row):
                body += f"<td{_classes(table, index)}>{inline(cell)}</td>"
            body += "</tr>"
        note = f'<p class="note">{inline(table.note)}</p>' if table.note else ""
        parts.append(
            f'<section class="table" id="table-{table.key}"><h3>{html.escape(table.title)}</h3>'
            '<div class="scroll" tabindex="0">'
            f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
            f"{note}</section>"
        )
    return "\n".join(parts)


def _classes(table: Table, index: int, head: str = "") -> str:
    """Return the class attribute of a cell: `number` is aligned right, `long` needs room for its words."""
    names = []
    if index and _numeric(table, index):
        names.append("number")
    if len(head) > _LONG_HEAD:
        names.append("long")
    return f' class="{" ".join(names)}"' if names else ""


_LONG_HEAD = 22
"""Characters of a head that needs more than three lines in a narrow column."""


def _html(name: str, question: str, shown: list[Table], words: list[str]) -> str:
    style = (
        ":root{color-scheme:light dark}"
        "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}"
        ".scroll{overflow-x:auto}table{border-collapse:collapse}th,td{padding:.3rem .6rem;text-align:left;"
        "border-bottom:1px solid #8884}.number{text-align:right;font-variant-numeric:tabular-nums}.note{opacity:.75}"
    )
    remarks = html_items(words)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(name)}</title><style>{style}</style></head><body><h1>{html.escape(name)}</h1>"
        f"<p>{html.escape(question)}</p>{html_tables(shown)}<ul>{remarks}</ul></body></html>\n"
    )
