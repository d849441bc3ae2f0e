"""The task set `bird`: BIRD, from a folder prepared by `harness data bird`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from harness.records import Task
from harness.util.parsing import file_hash
from harness_sql.tasks.bird.layout import BIRD
from harness_sql.tasks.prepared import PreparedTasks


class BirdTasks(PreparedTasks):
    """BIRD's questions, with their evidence.

    Splits: `train`, `dev`, `mini_dev` (500 of `dev`, chosen by the authors), `dev_500` (500 of
    `dev` by
    a hash; also called `val`) and `dev_rest` (`dev` without them). A split exists if its file was
    part
    of the prepared source.

    Args:
        data_dir: The prepared folder; by default `$HARNESS_BIRD_DATA_DIR`, or `harness/bird` in the
            cache
            folder.
        evidence: Show the evidence of a question.
        descriptions: Show the meaning of columns below their table.
        schema_chars: Maximum length of the schema text, in characters.
        style: `create` (CREATE statements) or `compact` (one line per table).
        sample_rows: Number of rows shown below each table.
    """

    name = "bird"
    layout = BIRD
    splits = {part.name: part for part in BIRD.parts} | BIRD.sample_splits
    citation = "Li et al. 2023, Can LLM Already Serve as A Database Interface? (NeurIPS)"

    def __init__(
        self,
        data_dir: str | None = None,
        evidence: bool = True,
        descriptions: bool = False,
        schema_chars: PositiveInt = 12000,
        style: Literal["create", "compact"] = "create",
        sample_rows: NonNegativeInt = 0,
    ) -> None:
        super().__init__(data_dir, schema_chars, style, sample_rows)
        self.evidence = evidence
        self.descriptions = descriptions

    def context(self, task: Task) -> Mapping[str, str]:
        evidence = str(task.data.get("evidence", "")).strip()
        return {
            **super().context(task),
            **({"evidence": evidence} if evidence and self.evidence else {}),
        }

    def shown_besides(self, path: str) -> Mapping[str, Any]:
        return {"notes": self._notes.get(Path(path).stem, {})} if self.descriptions else {}

    def options(self) -> dict[str, Any]:
        return {**super().options(), "evidence": self.evidence, "descriptions": self.descriptions}

    def describe(self) -> Mapping[str, Any]:
        if not self.descriptions:
            return super().describe()
        return {
            **super().describe(),
            "descriptions_sha256": file_hash(self.folder / BIRD.descriptions),
        }

    @cached_property
    def _notes(self) -> dict[str, dict[str, list[str]]]:
        """Return description lines by database and table (in lower case)."""
        notes: dict[str, dict[str, list[str]]] = {}
        for row in self.rows(BIRD.descriptions):
            lines = notes.setdefault(row["db_id"], {}).setdefault(row["table"].lower(), [])
            lines.append(f"{row['column']}: {row['text']}")
        return notes
