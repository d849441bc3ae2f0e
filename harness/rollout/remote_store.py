"""A store in a process of its own, named by `rollout.store`; plugins provide its clients."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from harness.errors import EnvironmentProblem, PluginError, how_to_install

if TYPE_CHECKING:
    from harness.rollout.store import StoreElsewhere

GROUP = "harness.stores"
"""Its entry point, `elsewhere`, names a class that implements `store.StoreElsewhere`."""


def elsewhere() -> type[StoreElsewhere]:
    """What runs use a store in a process of its own with.

    Raises:
        EnvironmentProblem: No plugin here brings it.
        PluginError: It does not import.
    """
    for point in entry_points(group=GROUP, name="elsewhere"):
        try:
            found: type[StoreElsewhere] = point.load()
        except (ImportError, AttributeError) as error:
            raise PluginError(
                f"{point.value}, which rollout.store needs, failed to import: {error}"
            ) from error
        return found
    raise EnvironmentProblem(
        "rollout.store needs the plugin harness-distributed. "
        f"Install it: {how_to_install('plugins')}"
    )
