"""How a value is stored: the forms that are drawn for each database, what they make of a value, and how they are seen.

The schema text names a column and one type for all forms of it, so that nothing but execution shows which was drawn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from recipes.pocket.domain import Value, literal

Kind = Literal["count", "amount", "date", "rank", "word", "country", "key"]

PRIORS: dict[Kind, dict[str, float]] = {
    "count": {"as it is": 1.0},
    "amount": {"whole": 0.4, "hundredths": 0.4, "thousandths": 0.2},
    "date": {"year first": 0.3, "day first": 0.35, "month first": 0.35},
    "rank": {"from one": 0.35, "from zero": 0.35, "letters": 0.3},
    "word": {"as written": 0.3, "small letters": 0.35, "abbreviated": 0.35},
    "country": {"as written": 0.25, "small letters": 0.25, "abbreviated": 0.25, "numbers": 0.25},
    "key": {"as it is": 0.2, "small letters": 0.2, "spaces": 0.2, "bare": 0.4},
}
"""Share of each form by kind. A key is what a foreign key holds of the code that it refers to."""

FACTORS = {"whole": 1, "hundredths": 100, "thousandths": 1000}
LEAST, MOST, SMALL = 10, 10_000, 90
"""Of amounts in their unit. Forms overlap: a number does not tell which it is in. The least of a column does, since all
have an amount of at most `SMALL`."""
COUNTRIES = {
    "Brazil": ("BR", "076"), "Canada": ("CA", "124"), "France": ("FR", "250"), "Germany": ("DE", "276"),
    "India": ("IN", "356"), "Italy": ("IT", "380"), "Japan": ("JP", "392"), "Kenya": ("KE", "404"),
    "Mexico": ("MX", "484"), "Norway": ("NO", "578"), "Poland": ("PL", "616"), "Spain": ("ES", "724"),
}  # fmt: skip
ORDINALS = ("first", "second", "third", "fourth")
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip

Date = tuple[int, int, int]
"""Year, month, day; a question asks for a month, which has day 0."""
Meaning = int | str | Date
"""A value as people mean it: an amount in its unit, a rank from 1, a word as it is written."""


@dataclass(frozen=True, slots=True)
class Form:
    """What was drawn for one noun of one database.

    Attributes:
        style: One of the forms of its kind.
        side: Which of two columns is filled; 0 where there is one.
        mark: What codes of a database begin with; of a key alone.
    """

    style: str
    side: int = 0
    mark: str = ""


def stored(kind: Kind, style: str, value: Meaning, mark: str = "") -> Value:
    """A value as the database has it."""
    if isinstance(value, tuple):
        year, month, day = value
        orders = {
            "year first": f"{year}-{month:02}-{day:02}",
            "day first": f"{day:02}/{month:02}/{year}",
        }
        return orders.get(style, f"{month:02}/{day:02}/{year}")
    if isinstance(value, int):
        if kind == "amount":
            return value * FACTORS[style]
        if kind == "rank":
            return {"from one": str(value), "from zero": str(value - 1)}.get(
                style, "ABCD"[value - 1]
            )
        return value
    if style == "small letters":
        return value.lower()
    if kind == "key":
        return {"as it is": value, "spaces": f"  {value} "}.get(style, value.removeprefix(mark))
    if style == "numbers":
        return COUNTRIES[value][1]
    if style == "abbreviated":
        return COUNTRIES[value][0] if kind == "country" else value[:3].upper()
    return value


def condition(kind: Kind, styles: Sequence[str], column: str, operator: str, value: Meaning) -> str:
    """SQL that holds where the column, in one of these forms, has the value; an amount has one form at a time."""
    if isinstance(value, tuple):
        year, month, _ = value
        patterns = {"year first": f"{year}-{month:02}-%", "day first": f"%/{month:02}/{year}"}
        likes = [
            f"{column} LIKE '{patterns.get(style, f'{month:02}/%/{year}')}'" for style in styles
        ]
        return likes[0] if len(likes) == 1 else f"({' OR '.join(likes)})"
    found = list(dict.fromkeys(literal(stored(kind, style, value)) for style in styles))
    if len(found) == 1 or kind in ("amount", "count"):
        return f"{column} {operator} {found[0]}"
    return f"{column} IN ({', '.join(found)})"


def joined_key(form: Form, column: str) -> str:
    """SQL that makes the referred code of a foreign key."""
    whole = {
        "small letters": f"UPPER({column})",
        "spaces": f"TRIM({column})",
        "bare": f"'{form.mark}' || {column}",
    }
    return whole.get(form.style, column)


def seen(kind: Kind, cells: Sequence[str]) -> str | None:
    """The form that shown cells of a column are in; None where they do not tell."""
    if kind == "amount":
        least = min(float(cell) for cell in cells)
        return next(
            (style for style, factor in FACTORS.items() if LEAST <= least / factor <= SMALL), None
        )
    if kind == "date":
        if any("-" in cell for cell in cells):
            return "year first"
        firsts, seconds = ([int(cell.split("/")[place]) for cell in cells] for place in (0, 1))
        return "day first" if max(firsts) > 12 else "month first" if max(seconds) > 12 else None
    if kind == "rank":
        if any(cell.isalpha() for cell in cells):
            return "letters"
        return "from zero" if "0" in cells else "from one" if "4" in cells else None
    if kind == "count":
        return "as it is"
    if all(cell.isdigit() for cell in cells):
        return "numbers"
    if all(cell.islower() for cell in cells):
        return "small letters"
    return "abbreviated" if all(cell.isupper() for cell in cells) else "as written"


def seen_key(keys: Sequence[str], codes: Sequence[str]) -> Form:
    """The form of foreign keys that are shown beside the codes that they refer to."""
    mark = codes[0][: codes[0].index("-") + 1]
    if all(re.fullmatch(r"\d+", key) for key in keys):
        return Form("bare", mark=mark)
    if all(key.strip() != key for key in keys):
        return Form("spaces", mark=mark)
    return Form("small letters" if all(key.islower() for key in keys) else "as it is", mark=mark)
