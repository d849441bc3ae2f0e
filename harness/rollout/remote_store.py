"""The queue in a process of its own, named by `rollout.store`; plugins provide its clients."""

from __future__ import annotations

from harness import plugins
from harness.contracts.queue import RemoteQueue
from harness.rollout.queue_plugin import only_spec


def remote_queue_type() -> type[RemoteQueue]:
    """Return the class of queues in a process of their own.

    Raises:
        EnvironmentProblem: No installed plugin provides one.
        PluginError: Several do, or the one does not import.
    """
    spec = only_spec(
        "store",
        missing="rollout.store needs the plugin harness-distributed.",
        several="are both stores of runs. Uninstall one of their plugins",
    )
    remote_queue: type[RemoteQueue] = plugins.load(spec)
    return remote_queue
