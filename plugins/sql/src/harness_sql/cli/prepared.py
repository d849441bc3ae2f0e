"""List prepared data of the task sets here and of plugins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harness.errors import PluginError, TaskSetError
from harness.plugins import load, registry

if TYPE_CHECKING:
    from harness_sql.tasks.prepared.layout import Layout
    from harness_sql.tasks.prepared.verify import Verified


class Prepared(Protocol):
    """The prepared data of a plugin's task set. Created without arguments."""

    def state(self) -> dict[str, str]:
        """Return its row of `harness data list`: name, folder, state and detail."""
        ...

    def verify(self, folder: Path | None = None) -> Verified:
        """Compare its files with its manifest."""
        ...


class Broken:
    """Prepared data of a plugin that cannot be imported."""

    def __init__(self, name: str, problem: str) -> None:
        self._name = name
        self._problem = problem

    def state(self) -> dict[str, str]:
        """Return a row of `harness data list` with the problem."""
        return {"name": self._name, "folder": "", "state": "broken", "detail": self._problem}

    def verify(self, folder: Path | None = None) -> Verified:
        """Refuse.

        Raises:
            PluginError: Always, with the problem.
        """
        raise PluginError(f"the prepared data {self._name!r} {self._problem}")


def layouts() -> dict[str, Layout]:
    """Return the layouts of the prepared task sets, by name."""
    from harness_sql.tasks.bird.layout import BIRD
    from harness_sql.tasks.spider.layout import LAYOUTS

    return {layout.name: layout for layout in (*LAYOUTS, BIRD)}


def prepared() -> dict[str, Prepared]:
    """Return plugins' prepared data by task set."""
    found: dict[str, Prepared] = {}
    for spec in registry().specs("prepared data"):
        try:
            found[spec.name] = load(spec)()
        except Exception as error:  # whatever a plugin does; other data can still be listed
            found[spec.name] = Broken(spec.name, f"of {registry().origin(spec)} is broken: {error}")
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
