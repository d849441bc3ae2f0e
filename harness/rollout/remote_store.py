"""The queue in a process of its own, named by `rollout.store`; plugins provide its clients."""

from __future__ import annotations

from harness import plugins
from harness.contracts.queue import RemoteQueue
from harness.errors import EnvironmentProblem, PluginError, how_to_install


def elsewhere() -> type[RemoteQueue]:
    """Return the class of queues in a process of their own.

    Raises:
        EnvironmentProblem: No installed plugin provides one.
        PluginError: Several do, or the one does not import.
    """
    specs = plugins.registry().specs("store")
    if not specs:
        raise EnvironmentProblem(
            "rollout.store needs the plugin harness-distributed. "
            f"Install it: {how_to_install('plugins')}"
        )
    if len(specs) > 1:
        names = " and ".join(spec.target for spec in specs)
        raise PluginError(f"{names} are both stores of runs. Uninstall one of their plugins")
    found: type[RemoteQueue] = plugins.load(specs[0])
    return found
