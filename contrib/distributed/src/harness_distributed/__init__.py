"""`harness store` and `harness runner`: the store and the agents of a run in separate processes."""

from __future__ import annotations

from harness.contracts.hookspecs import CommandSpec, StoreSpec, hookimpl

HARNESS_API = 1


@hookimpl
def harness_commands() -> list[CommandSpec]:
    return [
        CommandSpec(
            "store",
            "harness_distributed.store:app",
            "Keep the rollouts of runs in a separate process.",
        ),
        CommandSpec(
            "runner",
            "harness_distributed.runner:app",
            "Run agents for runs of other processes or machines.",
        ),
    ]


@hookimpl
def harness_stores() -> list[StoreSpec]:
    return [
        StoreSpec(
            "http",
            "harness_distributed.remote_queue:StoreQueue",
            "a store in a process of its own, by HTTP",
        ),
    ]
