"""Prepare BIRD, which is published as separate archives of train, dev and mini-dev."""

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
    """Prepare the files of several archives or folders together.

    Args:
        target: The prepared folder to write; by default BIRD's own.
        databases: A source of databases that the other sources lack. It takes precedence over
            theirs.

    Raises:
        TaskSetError: A source is damaged or has another layout, or the target holds something else.
    """
    with ExitStack() as stack:
        opened = []
        for path in sources:
            source = open_source(path, "BIRD", BIRD.marks, BIRD.folders)
            opened.append(stack.enter_context(source))
        more = None
        if databases is not None:
            more = stack.enter_context(open_databases(databases, BIRD.folders))
        return prepare_layout(merged(opened), BIRD, target or BIRD.default_folder(), more, progress)
