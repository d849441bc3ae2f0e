"""Drafts without a look: the most probable one, one that lists forms, and what a sound question must tell apart."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from recipes.pocket.world import same_rows
from recipes.pocket_probe.questions import Condition, Measure, Plan, Schema, Writer
from recipes.pocket_probe.storage import PRIORS, Form, Kind, condition
from recipes.pocket_probe.world import ProbeWorld

MOST_PROBABLE: dict[Kind, str] = {
    kind: max(shares, key=shares.__getitem__) for kind, shares in PRIORS.items()
}
MOST_PROBABLE["key"] = "small letters"
"""Made capitals, keys in small letters are right, and those that are as their codes. Bare ones need a mark that only a
look shows."""
LISTED: dict[Kind, tuple[str, ...]] = {
    "date": ("year first", "day first"),
    "rank": ("from one", "letters"),
    "word": tuple(PRIORS["word"]),
    "country": tuple(PRIORS["country"]),
}
"""The most probable forms that one condition can list without meaning another value in one of them."""


def most_probable(plan: Plan) -> dict[tuple[str, str], Form]:
    """The likeliest form of everything that a plan names. Both columns of a noun are as likely."""
    schema = plan.schema
    forms = {
        (noun.table, noun.part.noun): Form(MOST_PROBABLE[noun.part.kind]) for noun in plan.nouns
    }
    return forms | {(schema.child, schema.key): Form(MOST_PROBABLE["key"])}


class Hedge(Writer):
    """Lists forms where a condition can, and compares what every form of a key ends in."""

    def where(self, noun: Condition, prefix: str = "") -> str:
        styles = LISTED.get(noun.part.kind) or (MOST_PROBABLE[noun.part.kind],)
        return condition(
            noun.part.kind, styles, prefix + self.column(noun), noun.operator, noun.value
        )

    def key(self, schema: Schema, prefix: str = "") -> str:
        return f"SUBSTR(TRIM({prefix}{schema.key}), -2)"

    def code(self, prefix: str = "") -> str:
        return f"SUBSTR({prefix}code, -2)"


class Decode(Writer):
    """Takes each amount for what its size suggests, row by row."""

    def where(self, noun: Condition, prefix: str = "") -> str:
        if noun.part.kind != "amount":
            return super().where(noun, prefix)
        return f"{_decoded(self.column(noun, prefix))} {noun.operator} {noun.value}"

    def number(self, noun: Measure, prefix: str = "", function: str = "") -> str:
        value = self.column(noun, prefix)
        if noun.part.kind == "amount":
            value = _decoded(value)
        return f"{function}({value})" if function else value


class DecodingHedge(Decode, Hedge):
    """Does both."""


def _decoded(column: str) -> str:
    sizes = f"WHEN {column} < 1000 THEN {column} WHEN {column} < 10000 THEN {column} / 100.0"
    return f"CASE {sizes} ELSE {column} / 1000.0 END"


def draft(plan: Plan) -> str:
    """The best draft that settles for one form of everything."""
    return Writer(most_probable(plan)).query(plan)


def hedged(plan: Plan) -> str:
    """The best draft that may list forms."""
    return Hedge(most_probable(plan)).query(plan)


def decoding(plan: Plan) -> str:
    """The draft that lists forms and decodes amounts by their size."""
    return DecodingHedge(most_probable(plan)).query(plan)


def chance(plan: Plan, *, listing: bool = False) -> float:
    """How probable it is that the draft, or the one that may list forms, is right, before anything is executed."""
    found = 1.0
    for noun in plan.nouns:
        kind = noun.part.kind
        found /= len(noun.part.columns)
        if isinstance(noun, Condition) or plan.measured:
            styles = LISTED.get(kind, ()) if listing and isinstance(noun, Condition) else ()
            found *= sum(PRIORS[kind][style] for style in styles or (MOST_PROBABLE[kind],))
    if plan.linked and not listing:
        found *= PRIORS["key"]["small letters"] + PRIORS["key"]["as it is"]
    return found


class _Merged(Writer):
    """Takes one noun from both of its columns.

    Args:
        noun: Which.
        either: Whether a condition may hold of either column; else the second fills in for the first.
    """

    def __init__(self, writer: Writer, noun: Condition | Measure, *, either: bool) -> None:
        super().__init__(writer.forms)
        self._noun, self._either = noun, either

    def column(self, noun: Condition | Measure, prefix: str = "") -> str:
        live = super().column(noun, prefix)
        if noun is not self._noun or self._either:
            return live
        (other,) = {prefix + column for column in noun.part.columns} - {live}
        return f"COALESCE({other}, {live})"

    def where(self, noun: Condition, prefix: str = "") -> str:
        if noun is not self._noun or not self._either:
            return super().where(noun, prefix)
        style = self.forms[noun.table, noun.part.noun].style
        sides = [condition(noun.part.kind, (style,), prefix + column, noun.operator, noun.value)
                 for column in noun.part.columns]  # fmt: skip
        return f"({' OR '.join(sides)})"


class _Listing(Writer):
    """Lists forms of one noun's condition."""

    def __init__(self, writer: Writer, noun: Condition, styles: tuple[str, ...]) -> None:
        super().__init__(writer.forms)
        self._noun, self._styles = noun, styles

    def where(self, noun: Condition, prefix: str = "") -> str:
        if noun is not self._noun:
            return super().where(noun, prefix)
        return condition(
            noun.part.kind, self._styles, self.column(noun, prefix), noun.operator, noun.value
        )


COLLIDING: dict[Kind, tuple[str, ...]] = {
    "date": ("day first", "month first"),
    "rank": ("from one", "from zero"),
}
"""Forms of which one has another value where the other has the one that is asked for."""


def wrong(plan: Plan, right: Writer) -> Iterator[str]:
    """Drafts that are wrong in one thing: another form, another column, both columns, forms that collide, sizes."""
    schema = plan.schema
    for noun in plan.nouns:
        key, kind = (noun.table, noun.part.noun), noun.part.kind
        form = right.forms[key]
        forms = [Form(style, form.side) for style in PRIORS[kind] if style != form.style]
        if len(noun.part.columns) > 1:
            forms.append(Form(form.style, 1 - form.side))
            yield _Merged(right, noun, either=False).query(plan)
            if isinstance(noun, Condition):
                yield _Merged(right, noun, either=True).query(plan)
        yield from (Writer({**right.forms, key: other}).query(plan) for other in forms)
        if kind == "amount" and form.style != "thousandths":
            yield Decode(right.forms).query(plan)
        if isinstance(noun, Condition) and form.style in COLLIDING.get(kind, ()):
            yield from (_Listing(right, noun, (*COLLIDING[kind], *more)).query(plan)
                        for more in combinations(set(PRIORS[kind]) - set(COLLIDING[kind]), 1))  # fmt: skip
            yield _Listing(right, noun, COLLIDING[kind]).query(plan)
    if plan.linked:
        key = (schema.child, schema.key)
        form = right.forms[key]
        covering = ("small letters", "spaces") if form.style == "as it is" else ()
        for style in PRIORS["key"]:
            if style not in (form.style, *covering):
                yield Writer({**right.forms, key: Form(style, mark=form.mark)}).query(plan)


def sound(world: ProbeWorld, plan: Plan) -> bool:
    """Whether gold finds something and every draft that is wrong in one thing gives another result."""
    right = Writer(world.forms)
    sql = right.query(plan)
    gold = world.fetch(sql)
    if not gold or (len(gold) == 1 and gold[0] in ((None,), (0,))):
        return False
    ordered = "ORDER BY" in sql
    return all(
        not same_rows(world.fetch(other), gold, ordered)
        for other in wrong(plan, right)
        if other != sql
    )
