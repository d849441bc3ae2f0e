"""The task set `spider` (Spider 1.0) and its variants, from a folder of `harness data spider`.

Spider can also be loaded from a folder prepared by agent-lightning's example.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from harness_sql.tasks.prepared import PreparedTasks
from harness_sql.tasks.prepared.layout import Layout, Part
from harness_sql.tasks.spider.layout import DK, REALISTIC, SPIDER, SYN


def _parts(layout: Layout) -> dict[str, Part]:
    """Return the part of every split, including the splits of the sample."""
    return {part.name: part for part in layout.parts} | layout.sample_splits


_MIT = "MIT; databases: CC BY-SA 4.0"
_CUTS = ("train_a", "train_b", "train_b_fit", "train_b_held")


class SpiderTasks(PreparedTasks):
    """Spider's questions.

    Splits: `train` (train_spider), `train_others`, `dev`, `dev_500` (a fixed sample of dev; also
    called
    `val`) and `dev_rest` (dev without that sample).
    `train_a` and `train_b` divide `train` by database, about seven to three by a hash of its name:
    `train_a` is for pre-training a policy, `train_b` for reinforcement learning on unseen
    databases.
    `train_b_fit` and `train_b_held` divide `train_b` by gold query, four to one: other questions on
    the
    databases of the training. The variants have those of `train`, `dev`, `dev_500` and `dev_rest`
    for
    which files were published.

    Args:
        data_dir: The prepared folder; by default `$VERL_SPIDER_DATA_DIR`, or `harness/spider` in
            the
            cache folder. For a variant, the folder there with its name.
        schema_chars: Maximum length of the schema text, in characters.
        style: `create` (CREATE statements) or `compact` (one line per table).
        sample_rows: Number of rows shown below each table.
        use_schema_file: Use the `schema.sql` in a database's folder if there is one.
        include_others: Add `train_others` to `train`.
    """

    name = "spider"
    layout = SPIDER
    splits = _parts(SPIDER) | dict.fromkeys(_CUTS, _parts(SPIDER)["train"])
    citation = "Yu et al. 2018, Spider: A Large-Scale Human-Labeled Dataset (EMNLP)"

    def __init__(
        self,
        data_dir: str | None = None,
        schema_chars: PositiveInt = 8000,
        style: Literal["create", "compact"] = "create",
        sample_rows: NonNegativeInt = 0,
        use_schema_file: bool = False,
        include_others: bool = False,
    ) -> None:
        super().__init__(data_dir, schema_chars, style, sample_rows)
        self.use_schema_file = use_schema_file
        self.include_others = include_others

    def parts_of(self, split: str) -> Sequence[str]:
        both = split == "train" and self.include_others and "train_others" in self.splits
        return ["train", "train_others"] if both else [split]

    def belongs(self, split: str, db_id: str, gold: str) -> bool:
        return split not in _CUTS or split in _splits_of(db_id, gold)

    def shown_besides(self, path: str) -> Mapping[str, Any]:
        return {"schema_file": Path(path).with_name("schema.sql")} if self.use_schema_file else {}

    def options(self) -> dict[str, Any]:
        return {
            **super().options(),
            "use_schema_file": self.use_schema_file,
            "include_others": self.include_others,
        }


class SpiderSynTasks(SpiderTasks):
    """Spider-Syn: Spider's questions with synonyms of schema names."""

    name = "spider_syn"
    layout = SYN
    splits = _parts(SYN)
    citation = (
        "Gan et al. 2021, Towards Robustness of Text-to-SQL Models "
        "against Synonym Substitution (ACL)"
    )
    licence = _MIT


class SpiderRealisticTasks(SpiderTasks):
    """Spider-Realistic: questions of Spider's dev that do not name columns."""

    name = "spider_realistic"
    layout = REALISTIC
    splits = _parts(REALISTIC)
    citation = "Deng et al. 2021, Structure-Grounded Pretraining for Text-to-SQL (NAACL)"


class SpiderDKTasks(SpiderTasks):
    """Spider-DK: questions of Spider's dev that require domain knowledge."""

    name = "spider_dk"
    layout = DK
    splits = _parts(DK)
    citation = (
        "Gan et al. 2021, Exploring Underexplored Limitations of Cross-Domain Text-to-SQL "
        "Generalization (EMNLP)"
    )
    licence = _MIT


def _splits_of(db_id: str, gold: str) -> tuple[str, ...]:
    """Return the splits of a train_spider question, the same for all with its gold query."""
    if hashlib.sha256(db_id.encode()).digest()[0] % 4:
        return "train", "train_a"
    held = hashlib.sha256(f"{db_id}\0{gold}".encode()).digest()[0] % 5 == 0
    return "train", "train_b", "train_b_held" if held else "train_b_fit"
