"""File layout of BIRD: `dev.json` with `dev_databases/` (or its zip file), train and mini-dev."""

from __future__ import annotations

from harness_sql.tasks.prepared.layout import Layout, Part

BIRD = Layout(
    "bird",
    "BIRD",
    "harness data bird",
    (
        Part("train", "train.json", "train.parquet", ("train_databases",)),
        Part("dev", "dev.json", "dev.parquet", ("dev_databases",)),
        Part("mini_dev", "mini_dev_sqlite.json", "mini_dev.parquet", ("dev_databases",)),
    ),
    ("dev_databases", "train_databases"),
    {
        "question": ("question",),
        "db_id": ("db_id",),
        "query": ("SQL", "query"),
        "evidence": ("evidence",),
        "difficulty": ("difficulty",),
        "question_id": ("question_id",),
    },
    optional=frozenset({"evidence", "difficulty", "question_id"}),
    variable="HARNESS_BIRD_DATA_DIR",
    sample=("dev", Part("dev_500", "", "dev_500.parquet", ("dev_databases",))),
    as_is=True,
    descriptions="descriptions.parquet",
)
