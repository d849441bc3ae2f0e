"""The worker processes of a run: one pool for each of its agents.

Frameworks never share a process, so a run that mixes agents has workers for each of them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from harness.contracts.queue import Queue
from harness.gateway.client import GatewayControl
from harness.plugins import agent_spec, one_file, registry
from harness.plugins.sources import modules_hash
from harness.rollout.environments import python_for
from harness.rollout.pool import Worker, WorkerPool
from harness.rollout.remote_runners import Invitation, first
from harness.util.formatting import members

NUMBERS = 10_000
"""Numbers of workers reserved for each pool; replacements of dead workers take new ones."""


class AgentPools:
    """One pool of workers for each agent of a run.

    Args:
        runners: Number of workers in all, distributed evenly over the agents. Each agent has at
            least one, unless the number is 0.
        log_dir: Where `runner-N.log` goes.
        first_number: Number of the first worker; no two workers of a run may share one.
    """

    def __init__(
        self, invitation: Invitation, runners: int, log_dir: Path, first_number: int = 0
    ) -> None:
        self._pools: dict[str, WorkerPool] = {}
        agents = members(invitation.agent)
        for position, agent in enumerate(agents):
            left_over = position < runners % len(agents)
            count = runners // len(agents) + left_over
            # With 0 runners, only runners on other machines make rollouts.
            if runners:
                count = max(1, count)
            spec = agent_spec(agent)
            python = python_for(registry().owner("agent", spec.name))
            # An environment of its own may have another copy of a package.
            same = python == sys.executable or one_file.is_file(spec.target)
            self._pools[agent] = WorkerPool(
                count,
                partial(invitation.settings, agent, modules_hash(spec) if same else ""),
                log_dir,
                invitation.timeout_s,
                python,
                first=first_number + position * NUMBERS,
            )

    @property
    def restarts(self) -> int:
        """Number of workers that were replaced after an unexplained exit."""
        return sum(pool.restarts for pool in self._pools.values())

    def start(self) -> Mapping[str, list[str]]:
        """Start all workers.

        Returns at once, with the names by agent under which they will ask for rollouts.
        """
        names: dict[str, list[str]] = {}
        for agent, pool in self._pools.items():
            names[agent] = pool.start()
        return names

    def workers(self) -> list[Worker]:
        """Return the workers that exist."""
        workers: list[Worker] = []
        for pool in self._pools.values():
            workers += pool.workers()
        return workers

    def ids(self) -> list[str]:
        """Return the names of the workers that exist."""
        return [worker.id for worker in self.workers()]

    async def watch(self, queue: Queue, control: GatewayControl) -> None:
        """Replace dead and stuck workers until cancelled, as `WorkerPool.watch`.

        Raises:
            RunFailed: Workers of an agent keep dying for an unknown reason.
        """
        await first(*(pool.watch(queue, control) for pool in self._pools.values()))

    def stop(self) -> None:
        """Stop all workers, those of all agents at the same time."""
        with ThreadPoolExecutor(len(self._pools)) as threads:
            list(threads.map(WorkerPool.stop, self._pools.values()))
