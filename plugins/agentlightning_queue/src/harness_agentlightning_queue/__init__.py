"""The queue of rollouts on agentlightning's store, Trainer and runner."""

from __future__ import annotations

from harness.contracts.hookspecs import QueueSpec, hookimpl
from harness_agentlightning_queue.lightning import without_litellm

HARNESS_API = 1

without_litellm()  # before any module of a process imports agentlightning


@hookimpl
def harness_queues() -> list[QueueSpec]:
    return [
        QueueSpec(
            "agentlightning",
            "harness_agentlightning_queue.backend:LightningBackend",
            "agentlightning's store over HTTP, and its runner",
        )
    ]
