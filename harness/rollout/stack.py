"""The services that rollouts need during some work: queue, gateway and workers.

The backend of the queue runs the work; worker processes connect to the queue.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import harness
from harness.config import Config
from harness.contracts.queue import Queue, RemoteQueue, RunQueue
from harness.errors import ConfigError, RunFailed
from harness.gateway.server import GatewayServer
from harness.gateway.settings import MAX_BODY_BYTES, body_bytes
from harness.rollout.agent_pools import AgentPools
from harness.rollout.processes import RUN_MARK, no_orphans, sweep
from harness.rollout.queue_plugin import queue_backend
from harness.rollout.remote_runners import FILE_NAME, Invitation, first, watch_joined
from harness.rollout.remote_store import remote_queue_type
from harness.runs.folder import endings, undisturbed
from harness.util import start_trace
from harness.util.endpoints import Endpoint

logger = logging.getLogger(__name__)

WATCH_S = 0.1
"""Seconds between checks of the gateway, so that a dead one ends the run before rollouts fail."""


class RolloutWork(ABC):
    """Work that needs rollouts.

    Subclasses implement `work`; services start before it and end after it.

    Args:
        model: The name under which the policy's servers know it.
        log_dir: Where the workers' logs go.
        roles: What answers the roles of the configuration's `roles`: `LiveRun.roles`.

    Raises:
        ConfigError: `roles` lacks a configured role: the policy would answer it unnoticed.
        EnvironmentProblem: No plugin provides a queue.
        PluginError: Several do, or the one does not import.
    """

    def __init__(
        self,
        config: Config,
        model: str,
        log_dir: Path,
        mark: str,
        roles: Mapping[str, Endpoint] | None = None,
    ) -> None:
        self.roles = dict(roles or {})
        if missing := config.roles.keys() - self.roles.keys():
            raise ConfigError(
                f"roles.{min(missing)}: {type(self).__module__} "
                "does not know what answers this role: "
                "its `RolloutWork` "
                "takes `roles`, which a run has (`run.roles`)"
            )
        self.config = config
        self.model = model
        self.log_dir = log_dir
        self.mark = mark
        self.store_url = self.store_key = ""
        # Models of other roles may accept longer prompts than the policy.
        longest = MAX_BODY_BYTES if config.roles else body_bytes(config.sampling.max_prompt_tokens)
        self.gateway = GatewayServer(
            config.rollout.host,
            upstream_concurrency=1024,
            queue_size=4096,
            max_body_bytes=longest,
        )
        self.pools: AgentPools | None = None
        self._queue_backend = queue_backend()
        self._interrupted = False
        self._over = False
        self._failure: BaseException | None = None

    @abstractmethod
    async def work(self, queue: Queue) -> None:
        """The work itself, with services running.

        It is cancelled when workers cannot be kept alive.
        """

    def execute(self) -> None:
        """Run to the end; afterwards no process of this work is left.

        Raises:
            RunFailed: Workers keep dying, the gateway died, or what `work` raises.
            KeyboardInterrupt: Interrupted by Ctrl-C, SIGTERM or SIGHUP.
        """
        os.environ[RUN_MARK] = self.mark  # every child inherits it
        away = self.config.rollout.store
        queue: RunQueue
        if away:
            queue = remote_queue_type()(away, self.log_dir.parent.name)
        else:
            queue = self._queue_backend.open(self.config.rollout.host)
        try:
            with no_orphans():
                self._queue_backend.execute(queue, lambda: self._run_services(queue))
            # A backend may end quietly when interrupted, also where the work had failed before.
            if self._failure is not None:
                raise self._failure
            if self._interrupted or not self._over:
                raise KeyboardInterrupt
        finally:
            os.environ.pop(RUN_MARK, None)
            with undisturbed():  # a closed terminal sends the signal twice
                left = sweep(self.mark)
            if left:
                logger.info("ended %d processes that were left", left)

    async def _run_services(self, queue: RunQueue) -> None:
        """Run the services and the work."""
        this = asyncio.current_task()
        assert this is not None

        def interrupt() -> None:
            if not self._over:  # otherwise its services are ending already
                self._interrupted = True
                this.cancel()

        loop = asyncio.get_running_loop()
        # Python handles signals in the main thread only.
        main = threading.current_thread() is threading.main_thread()
        before = {number: signal.getsignal(number) for number in endings()} if main else {}
        for number in before:
            loop.add_signal_handler(number, interrupt)
        try:
            await self._serve(queue)
        except asyncio.CancelledError:
            if self._interrupted:
                raise KeyboardInterrupt from None
            raise
        except Exception as error:
            self._failure = error
            raise
        finally:
            self._over = True
            try:
                (self.log_dir.parent / FILE_NAME).unlink(missing_ok=True)
                await self._stop(queue)
            finally:
                for number, handler in before.items():
                    loop.remove_signal_handler(number)
                    signal.signal(number, signal.SIG_DFL if handler is None else handler)

    async def _serve(self, queue: RunQueue) -> None:
        """Start the services, and run the work together with their watchers."""
        with start_trace.span("store and gateway"):
            await queue.start()
            self.store_url, self.store_key = queue.endpoint, queue.key
            await asyncio.to_thread(self.gateway.start)
        policy = Endpoint(self.gateway.base_url, self.model, self.gateway.key)
        invitation = self.invitation()
        await queue.welcome(asdict(replace(invitation, store_key="")), policy)
        invitation.write(self.log_dir.parent / FILE_NAME)
        self.pools = AgentPools(invitation, self.config.rollout.runners, self.log_dir)
        for agent, runners in self.pools.start().items():
            queue.expect(runners, self.config.rollout.concurrency, agent)
        # A separate store watches the runners itself.
        watched = queue.keep() if isinstance(queue, RemoteQueue) else watch_joined(queue)
        async with self.gateway.control() as control:
            await control.point(roles=self.roles)
            await first(
                self.work(queue), self.pools.watch(queue, control), watched, self._watch_gateway()
            )

    async def _stop(self, queue: RunQueue) -> None:
        """End the services in reverse order of their dependencies."""
        if self.pools is not None:
            await asyncio.to_thread(self.pools.stop)
        await asyncio.to_thread(self.gateway.stop)
        await queue.stop()

    async def _watch_gateway(self) -> None:
        while (ended := self.gateway.ended) is None:
            await asyncio.sleep(WATCH_S)
        raise RunFailed(f"{ended}: no call of an agent can reach the policy without it")

    def invitation(self) -> Invitation:
        """Return the invitation for runners, local or not, after the services have started."""
        return Invitation(
            run=self.log_dir.parent.name,
            agent=self.config.agent,
            version=harness.__version__,
            store_url=self.store_url,
            gateway_url=self.gateway.base_url,
            control_key=self.gateway.control_key,
            concurrency=self.config.rollout.concurrency,
            timeout_s=self.config.rollout.timeout_s,
            store_key=self.store_key,
        )
