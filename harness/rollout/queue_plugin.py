"""The queue of rollouts that an installed plugin provides."""

from __future__ import annotations

from harness import plugins
from harness.contracts.hookspecs import Spec
from harness.contracts.queue import QueueBackend
from harness.errors import EnvironmentProblem, PluginError, how_to_install


def queue_spec() -> Spec:
    """Return the spec of the one installed queue, without importing it.

    Raises:
        EnvironmentProblem: No installed plugin provides one.
        PluginError: Several do.
    """
    specs = plugins.registry().specs("queue")
    if not specs:
        raise EnvironmentProblem(
            "rollouts need the plugin harness-agentlightning-queue. "
            f"Install it: {how_to_install('plugins')}"
        )
    if len(specs) > 1:
        names = " and ".join(spec.target for spec in specs)
        raise PluginError(f"{names} are all queues of rollouts. Uninstall all plugins but one")
    return specs[0]


def queue_backend() -> QueueBackend:
    """Return the one installed queue, ready for use.

    Raises:
        EnvironmentProblem: No installed plugin provides one.
        PluginError: Several do, or the one does not import.
    """
    backend: QueueBackend = plugins.load(queue_spec())()
    return backend
