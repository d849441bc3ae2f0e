"""List prepared data of the task sets here and of plugins."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harness.errors import TaskSetError

if TYPE_CHECKING:
    from harness_sql.tasks.prepared.layout import Layout
    from harness_sql.tasks.prepared.verify import Verified

PREPARED = "harness.prepared"
"""Entry points of plugins' prepared data: modules that follow `Prepared`."""


class Prepared(Protocol):
    """A plugin's prepared data."""

    def state(self) -> dict[str, str]:
        """Return its row of `harness data list`: name, folder, state and detail."""
        ...

    def verify(self, folder: Path | None = None) -> Verified:
        """Compare its files with its manifest."""
        ...


def layouts() -> dict[str, Layout]:
    """Return the layouts of the prepared task sets, by name."""
    from harness_sql.tasks.bird.layout import BIRD
    from harness_sql.tasks.spider.layout import LAYOUTS

    return {layout.name: layout for layout in (*LAYOUTS, BIRD)}


def prepared() -> dict[str, Prepared]:
    """Return plugins' modules that prepare data, by task set."""
    found = {}
    for point in sorted(entry_points(group=PREPARED), key=lambda point: point.name):
        with suppress(Exception):  # `harness plugins` says what is broken
            found[point.name] = point.load()
    return found


def state(layout: Layout) -> dict[str, str]:
    """Return a row of `harness data list`."""
    from harness_sql.tasks.prepared.verify import check_prepared, read_manifest

    folder = layout.default_folder()
    try:
        check_prepared(folder, layout)
        manifest = read_manifest(folder, layout)
    except TaskSetError as error:
        return {
            "name": layout.name,
            "folder": str(folder),
            "state": "not prepared",
            "detail": str(error),
        }
    parts = (manifest or {}).get("parts", {})
    return {
        "name": layout.name,
        "folder": str(folder),
        "state": "prepared" if manifest else "prepared by something else (no manifest)",
        "detail": ", ".join(f"{name} {part['runnable']}" for name, part in parts.items()),
    }
