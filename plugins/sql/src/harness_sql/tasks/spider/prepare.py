"""Prepare Spider or one of its variants, as determined by the files."""

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
    """Prepare an archive, a folder or a file, in the official or agent-lightning's layout.

    Args:
        target: The prepared folder to write; by default the variant's own.
        databases: A source of databases that the source lacks, which takes precedence over its own:
            another Spider, or the databases of its test suite.

    Raises:
        TaskSetError: The source is damaged or has another layout, or the target holds something
            else.
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
