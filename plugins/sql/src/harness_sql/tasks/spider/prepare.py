"""Prepares Spider or one of its variants, whichever the files are of."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from harness_sql.tasks.prepared.prepare import Progress, Report
from harness_sql.tasks.prepared.prepare import prepare as prepare_layout
from harness_sql.tasks.prepared.source import open_databases, open_source
from harness_sql.tasks.spider.layout import FOLDERS, MARKS, layout_of


def prepare(
    source: Path,
    target: Path | None = None,
    databases: Path | None = None,
    progress: Progress | None = None,
) -> Report:
    """Prepares the files of an archive or a folder, in the official or in agent-lightning's layout, or of one file.

    Args:
        target: Where to put the prepared folder; by default the variant's own.
        databases: Where databases are that the source lacks, or that go before its own: another Spider, or the
            databases of its test suite.

    Raises:
        TaskSetError: The source is damaged or laid out wrongly, or the target holds something else.
    """
    with ExitStack() as stack:
        opened = stack.enter_context(open_source(source, "Spider", MARKS, FOLDERS))
        more = (
            stack.enter_context(open_databases(databases, FOLDERS))
            if databases is not None
            else None
        )
        layout = layout_of(opened)
        return prepare_layout(opened, layout, target or layout.default_folder(), more, progress)
