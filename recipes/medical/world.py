"""Invented drugs and diseases: names that nobody bears, symptoms that nobody has, years that are far off."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

SCHEMA = """\
CREATE TABLE disease (
  disease_id INTEGER PRIMARY KEY, name TEXT, department TEXT, body_part TEXT, symptom TEXT, contagious TEXT,
  course_days INTEGER
);
CREATE TABLE drugs_info (
  drug_id INTEGER PRIMARY KEY, name TEXT, disease_id INTEGER REFERENCES disease(disease_id), maker TEXT, category TEXT,
  form TEXT, sale TEXT, price REAL, dose_mg INTEGER, times_daily INTEGER, side_effect TEXT, storage TEXT,
  approved_year INTEGER
);
"""
NOTES = {
    "disease": (
        "name 疾病名称, department 就诊科室, body_part 部位, symptom 症状, contagious 传染性, course_days 病程(天)",
    ),
    "drugs_info": (
        "name 药品名称, disease_id 所治疾病, maker 厂家, category 类别, form 剂型, sale 销售方式, price 价格(元)",
        "dose_mg 每次剂量(毫克), times_daily 每日次数, side_effect 不良反应, storage 贮藏, approved_year 批准年份",
    ),
}
"""What the columns hold, shown below the schema."""

SYLLABLES = (
    "鲸萤砂苔霁琥珀岚澈霓榆槐榴橘柚棠蔓蕨藓茸菱荻芒穗岩礁矶峦壑溪涧汀渚澜"
    "汐潮霜霰曦暮晨昼辰弦朔萍鹭鸢鹤雀鹿獭狸狐竹笙箫磬铃烛"
)
DISEASES = ("鸣症", "斑症", "眩症", "泡症", "影症")
DRUGS = ("锭", "饮", "膏", "丸")
MAKERS = ("药坊", "药庐", "造药社")

POOLS = {
    "department": ("星象科", "回声科", "羽毛科", "云雾科", "梦境科", "钟摆科"),
    "body_part": ("影子", "指尖", "发梢", "耳廓", "脚印", "眉心"),
    "symptom": (
        *(
            "指尖发蓝光",
            "打嗝冒彩球",
            "头发逆风飘",
            "总听见钟声",
            "走路有回音",
            "倒着说梦话",
            "脚步慢半拍",
            "眼里有星点",
        ),
        *("耳后长绒毛", "说话带浪声", "手心下小雪", "喷嚏变音符"),
    ),
    "contagious": ("会传染", "不传染"),
    "category": ("定影类", "止鸣类", "清泡类", "暖鳞类", "安梦类", "收光类"),
    "form": ("片剂", "露剂", "贴剂", "喷剂", "香囊", "糖浆"),
    "sale": ("凭方售", "自由售"),
    "side_effect": (
        "会做蓝色的梦",
        "走路像企鹅",
        "忍不住数数",
        "说话会押韵",
        "见风就想笑",
        "怕别人挠痒",
    ),
    "storage": ("放在月光下", "放进冰窖", "装进瓷罐", "锁进木匣", "埋在沙里"),
}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """The entities of one split. Drugs of a part treat its diseases and come from its makers, and no others do."""

    drugs: list[Row]
    diseases: list[Row]
    makers: list[str]

    @property
    def names(self) -> list[str]:
        return [row["name"] for row in (*self.drugs, *self.diseases)] + self.makers


class World:
    """One database with all parts in it."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self.parts = dict(parts)
        self.script = SCHEMA + "".join(self._inserts())
        self.connection = sqlite3.connect(":memory:", check_same_thread=False)
        self.connection.executescript(self.script)

    def _inserts(self) -> Iterator[str]:
        for table, rows in (
            ("disease", [row for part in self.parts.values() for row in part.diseases]),
            ("drugs_info", [row for part in self.parts.values() for row in part.drugs]),
        ):
            for row in sorted(rows, key=lambda row: int(next(iter(row.values())))):
                values = ", ".join(
                    f"'{value}'" if isinstance(value, str) else str(value) for value in row.values()
                )
                yield f"INSERT INTO {table} VALUES ({values});\n"

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql).fetchall()

    def close(self) -> None:
        self.connection.close()


def build_world(
    rng: Random, sizes: Mapping[str, tuple[int, int]], refused: Collection[str] = ()
) -> World:
    """A random database.

    Args:
        sizes: Of each part the numbers of diseases and of makers; a disease has two to six drugs.
        refused: Names that it must not have.
    """
    taken = set(refused)

    def name(length: int, endings: tuple[str, ...]) -> str:
        while True:
            made = "".join(rng.sample(SYLLABLES, length)) + rng.choice(endings)
            if made not in taken:
                taken.add(made)
                return made

    parts = {}
    diseases = drugs = 0
    for part, (disease_count, maker_count) in sizes.items():
        makers = [name(2, MAKERS) for _ in range(maker_count)]
        found: list[Row] = []
        treated: list[Row] = []
        for _ in range(disease_count):
            diseases += 1
            treated.append(_disease(rng, diseases, name(2, DISEASES)))
            for _ in range(rng.choice((2, 3, 4, 4, 5, 5, 6))):
                drugs += 1
                found.append(_drug(rng, drugs, name(3, DRUGS), diseases, rng.choice(makers)))
        parts[part] = Part(
            found,
            treated,
            [maker for maker in makers if any(row["maker"] == maker for row in found)],
        )
    return World(parts)


def _disease(rng: Random, number: int, name: str) -> Row:
    drawn = {
        column: rng.choice(POOLS[column])
        for column in ("department", "body_part", "symptom", "contagious")
    }
    return {"disease_id": number, "name": name, **drawn, "course_days": rng.randint(2, 90)}


def _drug(rng: Random, number: int, name: str, disease: int, maker: str) -> Row:
    drawn = {column: rng.choice(POOLS[column]) for column in ("category", "form", "sale")}
    return {
        "drug_id": number,
        "name": name,
        "disease_id": disease,
        "maker": maker,
        **drawn,
        "price": rng.randint(3, 99) + rng.randint(1, 9) / 10,
        "dose_mg": 5 * rng.randint(1, 160),
        "times_daily": rng.randint(1, 4),
        "side_effect": rng.choice(POOLS["side_effect"]),
        "storage": rng.choice(POOLS["storage"]),
        "approved_year": rng.randint(3001, 3099),
    }
