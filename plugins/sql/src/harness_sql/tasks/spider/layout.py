"""File layouts of Spider and its variants: official, by agent-lightning's example, and prepared."""

from __future__ import annotations

from dataclasses import replace

from harness_sql.tasks.prepared.layout import Layout, Part
from harness_sql.tasks.prepared.source import Source, columns_of

FOLDERS = ("database", "test_database")
_OF_DEV = ("test_database", "database")
_DEV = Part("dev", "dev.json", "test_dev.parquet", _OF_DEV)
_TRAIN = Part("train", "train_spider.json", "train_spider.parquet", ("database",))

SPIDER = Layout(
    "spider",
    "Spider",
    "harness data spider",
    (
        _TRAIN,
        Part("train_others", "train_others.json", "train_others.parquet", ("database",)),
        _DEV,
    ),
    FOLDERS,
    {"question": ("question",), "db_id": ("db_id",), "query": ("query",)},
    variable="VERL_SPIDER_DATA_DIR",
    sample=("dev", Part("dev_500", "", "test_dev_500.parquet", _OF_DEV)),
)
SYN = replace(
    SPIDER,
    name="spider_syn",
    title="Spider-Syn",
    parts=(_TRAIN, _DEV),
    columns={**SPIDER.columns, "question": ("SpiderSynQuestion", "question")},
    variable="",
)
REALISTIC = replace(
    SPIDER,
    name="spider_realistic",
    title="Spider-Realistic",
    parts=(replace(_DEV, official="spider-realistic.json", parquet="realistic.parquet"),),
    variable="",
    sample=None,
)
DK = replace(
    REALISTIC,
    name="spider_dk",
    title="Spider-DK",
    parts=(replace(_DEV, official="Spider-DK.json", parquet="dk.parquet"),),
)
LAYOUTS = (SPIDER, SYN, REALISTIC, DK)
MARKS = frozenset().union(*(layout.marks for layout in LAYOUTS))


def layout_of(source: Source) -> Layout:
    """Return the variant of a source, by its file names and, for Spider-Syn, by its columns."""
    for layout in (REALISTIC, DK):
        if layout.marks & source.files.keys():
            return layout
    if source.made_for in (SYN.name, SPIDER.name):
        return SYN if source.made_for == SYN.name else SPIDER
    renamed = any("SpiderSynQuestion" in columns_of(source, part) for part in SYN.parts)
    return SYN if renamed else SPIDER
