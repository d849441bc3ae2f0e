"""Questions about one entity each, with the query that finds the answer and the mistakes that they invite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from recipes.medical.world import POOLS, Part, Row, World


@dataclass(frozen=True, slots=True)
class Item:
    """One question.

    Attributes:
        entity: The drug, disease or maker that it names.
        answer: In words.
        facts: What an answer has to state.
        slips: By name of the mistake: the query that makes it, and the answer that comes of it.
        broken: A query that fails, as one writes who has not read the schema.
    """

    kind: str
    difficulty: str
    entity: str
    question: str
    sql: str
    answer: str
    facts: tuple[str, ...]
    broken: str
    slips: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Draft:
    """`say` puts the entity for `{e}`, the first row's cells for `{0}`, `{1}`, and the first column for `{all}`."""

    kind: str
    difficulty: str
    wordings: tuple[str, ...]
    sql: str
    say: str
    slips: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Query and `say` of each."""


# Column: what is asked, and the answer.
_OF_DRUG = {
    "maker": ("{e}是哪家生产的", "由{0}生产"),
    "category": ("{e}属于哪一类药", "属于{0}"),
    "form": ("{e}是什么剂型", "剂型是{0}"),
    "sale": ("{e}怎么销售", "销售方式是{0}"),
    "price": ("{e}卖多少钱", "价格是{0}元"),
    "dose_mg": ("{e}每次用多少毫克", "每次{0}毫克"),
    "times_daily": ("{e}每天用几次", "每天{0}次"),
    "side_effect": ("{e}有什么不良反应", "不良反应是{0}"),
    "storage": ("{e}该怎么贮藏", "贮藏方法是{0}"),
    "approved_year": ("{e}是哪一年批准的", "批准于{0}年"),
}
_OF_DISEASE = {
    "department": ("{e}该看哪个科", "看{0}"),
    "body_part": ("{e}发生在什么部位", "部位是{0}"),
    "symptom": ("{e}有什么症状", "症状是{0}"),
    "contagious": ("{e}的传染性如何", "{0}"),
    "course_days": ("{e}的病程有多少天", "病程是{0}天"),
}
_OF_ITS_DISEASE = {
    "name": ("{e}是治什么病的", "治的是{0}"),
    "department": ("{e}治的病该看哪个科", "治的病看{0}"),
    "symptom": ("{e}治的病有什么症状", "治的病症状是{0}"),
    "course_days": ("{e}治的病病程有多少天", "治的病病程是{0}天"),
}
_OPENINGS = ("", "请问", "帮我查一下,", "我想知道")
_JOIN = "FROM drugs_info AS a JOIN disease AS b ON a.disease_id = b.disease_id WHERE"
_ENDS = {"最便宜": "ASC", "最贵": "DESC"}


def items_of(world: World, part: Part, rng: Random, per: dict[str, int]) -> Iterator[Item]:
    """Questions about every entity of a part, `per` entity of each sort, no text twice."""
    drawers: list[tuple[str, list[Any], Callable[[Any, Random], Iterator[_Draft]]]] = [
        ("drug", part.drugs, _about_drug),
        ("disease", part.diseases, _about_disease),
        ("maker", part.makers, _about_maker),
    ]
    asked: set[str] = set()
    for sort, entities, about in drawers:
        for entity in entities:
            name = entity if isinstance(entity, str) else entity["name"]
            drafts = list(about(entity, rng))
            rng.shuffle(drafts)
            left = per[sort]
            for draft in drafts:
                item = _finished(world, draft, name, rng)
                if left and item is not None and item.question not in asked:
                    asked.add(item.question)
                    left -= 1
                    yield item


def _about_drug(drug: Row, rng: Random) -> Iterator[_Draft]:
    name = drug["name"]
    *alone, second, third = rng.sample(sorted(_OF_DRUG), 4)
    for column in alone:
        yield _look_up("drugs_info", _OF_DRUG, column, name)
    (asked, said), (more, also) = _OF_DRUG[second], _OF_DRUG[third]
    yield _Draft(
        "two_columns",
        "easy",
        (f"{asked},{more.replace('{e}', '')}?", f"{asked}?另外{more.replace('{e}', '它')}?"),
        f"SELECT {second}, {third} FROM drugs_info WHERE name = '{name}'",
        f"{{e}}{said},{also.replace('{0}', '{1}')}。",
        {
            "second_column_lost": (
                f"SELECT {second} FROM drugs_info WHERE name = '{name}'",
                f"{{e}}{said}。",
            )
        },
    )
    for column in rng.sample(sorted(_OF_ITS_DISEASE), 2):
        asked, said = _OF_ITS_DISEASE[column]
        sql = f"SELECT b.{column} {_JOIN} a.name = '{name}'"
        yield _Draft(f"joined_{column}", "medium", (f"{asked}?",), sql, f"{{e}}{said}。")
    same = f"disease_id = (SELECT disease_id FROM drugs_info WHERE name = '{name}')"
    yield _list(
        "other_drugs",
        "hard",
        ("{e}治的病,还有哪些别的药能治?", "除了{e},治同一种病的药还有哪些?"),
        f"SELECT name FROM drugs_info WHERE {same} AND name != '{name}'",
        "除{e}外,还有{all}。",
    )
    made = f"SELECT COUNT(*) FROM drugs_info WHERE maker = (SELECT maker FROM drugs_info WHERE name = '{name}')"
    say = "生产{e}的厂家共有{0}种药。"
    yield _Draft(
        "same_maker",
        "hard",
        ("生产{e}的厂家一共有几种药?", "{e}的厂家总共生产几种药?"),
        made,
        say,
        {"itself_left_out": (f"{made} AND name != '{name}'", say)},
    )


def _about_disease(disease: Row, rng: Random) -> Iterator[_Draft]:
    name = disease["name"]
    of = f"{_JOIN} b.name = '{name}'"
    yield _look_up("disease", _OF_DISEASE, rng.choice(sorted(_OF_DISEASE)), name)
    yield _list(
        "drugs_of",
        "medium",
        ("治{e}的药有哪些?", "哪些药能治{e}?"),
        f"SELECT a.name {of}",
        "治{e}的药有{all}。",
    )
    yield _Draft(
        "count_drugs_of",
        "medium",
        ("治{e}的药有几种?", "有几种药能治{e}?"),
        f"SELECT COUNT(*) {of}",
        "治{e}的药有{0}种。",
    )
    end, order = rng.choice(sorted(_ENDS.items()))
    other = "ASC" if order == "DESC" else "DESC"
    say = f"治{{e}}{end}的药是{{0}},{{1}}元。"
    yield _Draft(
        "extreme_of",
        "hard",
        (f"治{{e}}的药里{end}的是哪种,多少钱?", f"哪种药治{{e}}{end},要多少元?"),
        f"SELECT a.name, a.price {of} ORDER BY a.price {order} LIMIT 1",
        say,
        {"wrong_end": (f"SELECT a.name, a.price {of} ORDER BY a.price {other} LIMIT 1", say)},
    )
    times = rng.randint(2, 4)
    yield _Draft(
        "count_with_bound",
        "hard",
        (
            f"治{{e}}的药里每天至少用{times}次的有几种?",
            f"有几种治{{e}}的药每天要用{times}次或更多?",
        ),
        f"SELECT COUNT(*) {of} AND a.times_daily >= {times}",
        "这样治{e}的药有{0}种。",
        {
            "strict_bound": (
                f"SELECT COUNT(*) {of} AND a.times_daily > {times}",
                "这样治{e}的药有{0}种。",
            )
        },
    )
    yield _Draft(
        "average_of",
        "hard",
        ("治{e}的药平均多少钱?保留一位小数。",),
        f"SELECT ROUND(AVG(a.price), 1) {of}",
        "治{e}的药平均{0}元。",
        {"total_for_average": (f"SELECT ROUND(SUM(a.price), 1) {of}", "治{e}的药平均{0}元。")},
    )


def _about_maker(maker: str, rng: Random) -> Iterator[_Draft]:
    of = f"FROM drugs_info WHERE maker = '{maker}'"
    yield _list(
        "made_by",
        "easy",
        ("{e}生产哪些药?", "哪些药是{e}生产的?"),
        f"SELECT name {of}",
        "{e}生产的药有{all}。",
    )
    sale = rng.choice(POOLS["sale"])
    say = f"{{e}}{sale}的药有{{0}}种。"
    yield _Draft(
        "count_with_condition",
        "medium",
        (f"{{e}}{sale}的药有几种?", f"{{e}}的药里有几种是{sale}的?"),
        f"SELECT COUNT(*) {of} AND sale = '{sale}'",
        say,
        {"second_condition_lost": (f"SELECT COUNT(*) {of}", say)},
    )
    end, order = rng.choice(sorted(_ENDS.items()))
    other = "ASC" if order == "DESC" else "DESC"
    say = f"{{e}}{end}的药是{{0}}。"
    yield _Draft(
        "extreme_by",
        "medium",
        (f"{{e}}{end}的药是哪种?", f"{{e}}生产的药里哪种{end}?"),
        f"SELECT name {of} ORDER BY price {order} LIMIT 1",
        say,
        {"wrong_end": (f"SELECT name {of} ORDER BY price {other} LIMIT 1", say)},
    )
    yield _list(
        "diseases_of",
        "medium",
        ("{e}的药能治哪些病?", "哪些病能用{e}的药来治?"),
        f"SELECT DISTINCT b.name {_JOIN} a.maker = '{maker}'",
        "{e}的药能治{all}。",
    )
    form = rng.choice(POOLS["form"])
    yield _list(
        "made_in_form",
        "medium",
        (f"{{e}}的药里哪些是{form}?", f"{{e}}生产哪些{form}?"),
        f"SELECT name {of} AND form = '{form}'",
        f"{{e}}的{form}有{{all}}。",
    )
    yield _Draft(
        "count_diseases_of",
        "hard",
        ("{e}的药一共能治几种病?",),
        f"SELECT COUNT(DISTINCT disease_id) {of}",
        "{e}的药一共能治{0}种病。",
        {"distinct_lost": (f"SELECT COUNT(disease_id) {of}", "{e}的药一共能治{0}种病。")},
    )


def _look_up(table: str, columns: dict[str, tuple[str, str]], column: str, name: str) -> _Draft:
    asked, said = columns[column]
    sql = f"SELECT {column} FROM {table} WHERE name = '{name}'"
    return _Draft(column, "easy", (f"{asked}?",), sql, f"{{e}}{said}。")


def _list(kind: str, difficulty: str, wordings: tuple[str, ...], sql: str, say: str) -> _Draft:
    return _Draft(kind, difficulty, wordings, sql, say, {"rest_lost": (f"{sql} LIMIT 1", say)})


MAX_ROWS = 8


def _finished(world: World, draft: _Draft, name: str, rng: Random) -> Item | None:
    """The question with its answer; None where nothing or too much is found, a tie decides, or a fact is in it."""
    rows = world.rows(draft.sql)
    if not rows or len(rows) > MAX_ROWS or rows == [(0,)]:
        return None
    if "LIMIT 1" in draft.sql:
        price = draft.sql.partition("ORDER BY ")[2].split()[0]
        everything = draft.sql.partition(" ORDER BY ")[0]
        prices = [row[-1] for row in world.rows(everything.replace(" FROM", f", {price} FROM", 1))]
        if len(prices) < 2 or len(set(prices)) < len(prices):
            return None
    listed = "{all}" in draft.say
    facts = tuple(str(cell) for cell in ([row[0] for row in rows] if listed else rows[0]))
    question = rng.choice(_OPENINGS) + rng.choice(draft.wordings).format(e=name)
    if any(fact in question for fact in facts):
        return None
    answer = _said(draft.say, name, rows)
    slips = {}
    for slip, (sql, say) in draft.slips.items():
        said = _said(say, name, world.rows(sql)) if world.rows(sql) else answer
        if any(fact not in said for fact in facts):
            slips[slip] = (sql, said)
    broken = (
        draft.sql.replace("drugs_info", "drugs") if "drugs_info" in draft.sql else draft.sql[:-1]
    )
    return Item(
        draft.kind, draft.difficulty, name, question, draft.sql, answer, facts, broken, slips
    )


def _said(say: str, name: str, rows: list[tuple[Any, ...]]) -> str:
    return say.format(*rows[0], e=name, all="、".join(str(row[0]) for row in rows))
