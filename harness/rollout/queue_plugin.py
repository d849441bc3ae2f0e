"""The queue of rollouts that an installed plugin provides, here or in a process of its own."""

from __future__ import annotations

from harness import plugins
from harness.contracts.hookspecs import Spec
from harness.contracts.queue import QueueBackend
from harness.errors import EnvironmentProblem, PluginError, how_to_install
from harness.rollout.environments import own_environment


def only_spec(kind: str, missing: str, several: str) -> Spec:
    """Return the spec of the one installed plugin of a kind, without importing it.

    Args:
        missing: Message if no plugin provides one; how to install it follows.
        several: Message if several do, after their targets.

    Raises:
        EnvironmentProblem: No installed plugin provides one.
        PluginError: Several do.
    """
    specs = plugins.registry().specs(kind)
    if not specs and (plugin := own_environment()):
        # A separate environment may be older than the missing plugin.
        raise EnvironmentProblem(
            f"{missing} The environment of plugin {plugin!r} lacks it: "
            f"harness plugins sync {plugin}"
        )
    if not specs:
        raise EnvironmentProblem(f"{missing} Install it: {how_to_install('plugins')}")
    if len(specs) > 1:
        names = " and ".join(spec.target for spec in specs)
        raise PluginError(f"{names} {several}")
    return specs[0]


def queue_spec() -> Spec:
    """Return the spec of the one installed queue, without importing it.

    Raises:
        EnvironmentProblem: No installed plugin provides one.
        PluginError: Several do.
    """
    return only_spec(
        "queue",
        missing="rollouts need the plugin harness-agentlightning-queue.",
        several="are all queues of rollouts. Uninstall all plugins but one",
    )


def queue_backend() -> QueueBackend:
    """Return the one installed queue, ready for use.

    Raises:
        EnvironmentProblem: No installed plugin provides one.
        PluginError: Several do, or the one does not import.
    """
    backend: QueueBackend = plugins.load(queue_spec())()
    return backend
