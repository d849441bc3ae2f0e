"""`harness store` and `harness runner`: the store and the agents of a run in separate processes."""

from __future__ import annotations

HARNESS_API = 1
COMMANDS: dict[str, tuple[str, str]] = {
    "store": ("harness_distributed.store", "Keep the rollouts of runs in a separate process."),
    "runner": ("harness_distributed.runner", "Run agents for runs of other processes or machines."),
}
"""Map commands to module and summary, as in `harness.cli`."""
