"""Prepares BIRD, of which train, dev and mini-dev are archives of their own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from harness_sql.tasks.bird.layout import BIRD
from harness_sql.tasks.prepared.prepare import Progress, Report
from harness_sql.tasks.prepared.prepare import prepare as prepare_layout
from harness_sql.tasks.prepared.source import merged, open_databases, open_source


def prepare(
    sources: Sequence[Path],
    target: Path | None = None,
    databases: Path | None = None,
    progress: Progress | None = None,
) -> Report:
    """Prepares the files of archives or folders together.

    Args:
        target: Where to put the prepared folder; by default BIRD's own.
        databases: Where databases are that the sources lack, or that go before their own.

    Raises:
        TaskSetError: A source is damaged or laid out wrongly, or the target holds something else.
    """
    with ExitStack() as stack:
        opened = [
            stack.enter_context(open_source(path, "BIRD", BIRD.marks, BIRD.folders))
            for path in sources
        ]
        more = (
            stack.enter_context(open_databases(databases, BIRD.folders))
            if databases is not None
            else None
        )
        return prepare_layout(merged(opened), BIRD, target or BIRD.default_folder(), more, progress)
