"""A run for Python and notebooks: record, configuration, rows as tables, and summaries."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.api import summaries
from harness.errors import UserError
from harness.runs.monitor import standing
from harness.util.formatting import printable

if TYPE_CHECKING:
    import pandas as pd

    from harness.config import Config
    from harness.runs.folder import RunFolder
    from harness.runs.reading import Run
    from harness.runs.schema import RunRecord

_ORDER = ["step", "phase"]


def load_run(path: str | os.PathLike[str], runs_dir: str | os.PathLike[str] = "runs") -> LoadedRun:
    """Return a run on disk, finished or not.

    Args:
        path: Its folder, or its id.
        runs_dir: Folder of the runs that are given by id.

    Raises:
        UserError: No run or several runs match, or the record cannot be read.
    """
    return LoadedRun(one_run(Path(path), Path(runs_dir)))


class LoadedRun:
    """One run, accepted by every function that takes the path of a run's folder.

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
        """Read the run in a folder."""
        from harness.runs.reading import read_run

        return cls(read_run(folder.path))

    @property
    def id(self) -> str:
        """The name of its folder."""
        return self._run.id

    @property
    def result(self) -> Mapping[str, Any]:
        """Its result; empty before its end."""
        return self.record["result"] or {}

    @cached_property
    def config(self) -> Config:
        """The resolved configuration."""
        return self._run.folder.config()

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row per step."""
        return self._run.steps.to_pandas()

    @cached_property
    def episodes(self) -> pd.DataFrame:
        """One row per rollout, by step, phase and task; no reward if unscored."""
        return self._run.episodes.to_pandas().sort_values(
            [*_ORDER, "task_id"], kind="stable", ignore_index=True
        )

    @cached_property
    def roles(self) -> pd.DataFrame:
        """One row per step, phase and role: sums, and figures per rollout or call."""
        from harness.compare.by_role import roles_table

        return (
            roles_table(self._run, *_ORDER)
            .to_pandas()
            .sort_values(_ORDER, kind="stable", ignore_index=True)
        )

    @cached_property
    def calls(self) -> pd.DataFrame:
        """One row per call, with the number of its `response_tokens` instead of their ids.

        No rows if the run kept none.
        """
        import pandas as pd

        table = self._run.transitions
        return pd.DataFrame() if table is None else table.to_pandas()

    @property
    def summary(self) -> str:
        """Return the final lines of its command, or the progress before its end."""
        if self.record["result"] is None:
            return ", ".join(filter(None, (_title(self._run), standing(self._run.progress))))
        return summaries.summary(self._run.folder, self.record)

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __repr__(self) -> str:
        return printable(f"<{_title(self._run)}>")

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: `harness runs show` as a table with all text escaped."""
        from harness.compare.columns import Table
        from harness.compare.formats import html_tables

        rows = []
        # Why a run ended comes first: without it, its results mislead.
        if reason := self.record.get("reason"):
            rows.append(["reason", str(reason)])
        left_s = summaries.overview(self._run)["left_s"]
        for name, value in summaries.facts(self._run, left_s).items():
            rows.append([name, str(value)])
        run_table = Table("run", _title(self._run), ["", ""], rows)
        return printable(html_tables([run_table, *summaries.by_role(self._run)]))


def _title(run: Run) -> str:
    record = run.record
    return f"{run.id}: {record['kind']} {record['status']}"


def one_run(path: Path, runs_dir: Path) -> Run:
    """Return the run of a folder or an id.

    Raises:
        UserError: No run or several runs match.
    """
    from harness.compare.selection import select

    found = select([path], runs_dir).runs
    if len(found) != 1:
        raise UserError(f"{path} has {len(found)} runs; give the folder or id of one of them")
    return found[0]
