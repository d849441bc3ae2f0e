"""A run as Python and notebooks have it: record, configuration, rows as tables, and what commands say of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import UserError
from harness.monitor import standing
from harness.python import summaries
from harness.wording import printable

if TYPE_CHECKING:
    import pandas as pd

    from harness.compare.runs import Run
    from harness.config import Config
    from harness.results.folder import RunFolder
    from harness.results.schema import RunRecord

_ORDER = ["step", "phase"]


def load_run(path: str | os.PathLike[str], runs_dir: str | os.PathLike[str] = "runs") -> LoadedRun:
    """A run on disk, finished or not.

    Args:
        path: Its folder, or its id.
        runs_dir: Where runs named by id are looked for.

    Raises:
        UserError: There is no run there, there are several, or its record cannot be read.
    """
    return LoadedRun(one_run(Path(path), Path(runs_dir)))


class LoadedRun:
    """One run. A path of it goes wherever a run's folder does.

    Attributes:
        path: Its folder.
        record: The content of `run.json`.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.path: Path = run.folder.path
        self.record: RunRecord = run.record

    @classmethod
    def read(cls, folder: RunFolder) -> LoadedRun:
        """The run in a folder."""
        from harness.compare.runs import read_run

        return cls(read_run(folder.path))

    @property
    def id(self) -> str:
        """The name of its folder."""
        return self._run.id

    @property
    def result(self) -> Mapping[str, Any]:
        """What came of it; empty before its end."""
        return self.record["result"] or {}

    @cached_property
    def config(self) -> Config:
        """The resolved configuration."""
        return self._run.folder.config()

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row a step."""
        return self._run.steps.to_pandas()

    @cached_property
    def episodes(self) -> pd.DataFrame:
        """One row a rollout, by step, phase and task; no reward where it is unscored."""
        return self._run.episodes.to_pandas().sort_values(
            [*_ORDER, "task_id"], kind="stable", ignore_index=True
        )

    @cached_property
    def roles(self) -> pd.DataFrame:
        """One row a step, phase and role: what it did, as sums and as figures of a rollout or a call."""
        from harness.compare.by_role import roles_table

        return (
            roles_table(self._run, *_ORDER)
            .to_pandas()
            .sort_values(_ORDER, kind="stable", ignore_index=True)
        )

    @cached_property
    def calls(self) -> pd.DataFrame:
        """One row a call, with the number of its `response_tokens`, not their ids; no row where the run kept none."""
        import pandas as pd

        table = self._run.transitions
        return pd.DataFrame() if table is None else table.to_pandas()

    @property
    def summary(self) -> str:
        """The lines that end its command; where it stands, before that."""
        if self.record["result"] is None:
            return ", ".join(filter(None, (_title(self._run), standing(self._run.progress))))
        return summaries.summary(self._run.folder, self.record)

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __repr__(self) -> str:
        return printable(f"<{_title(self._run)}>")

    def _repr_html_(self) -> str:
        """What a notebook shows: `harness runs show` as a table. All text in it is text."""
        from harness.compare.columns import Table
        from harness.compare.formats import html_tables

        told = {"reason": reason} if (reason := self.record.get("reason")) else {}
        rows = [
            [name, str(value)] for name, value in {**told, **summaries.facts(self._run)}.items()
        ]
        return printable(
            html_tables(
                [Table("run", _title(self._run), ["", ""], rows), *summaries.by_role(self._run)]
            )
        )


def _title(run: Run) -> str:
    record = run.record
    return f"{run.id}: {record['kind']} {record['status']}"


def one_run(path: Path, runs_dir: Path) -> Run:
    """The run of a folder or an id.

    Raises:
        UserError: There is none, or there are several.
    """
    from harness.compare.selection import select

    found = select([path], runs_dir).runs
    if len(found) != 1:
        raise UserError(f"{path} holds {len(found)} runs; name one of them")
    return found[0]
