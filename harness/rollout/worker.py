"""The process of one plugin's agent: `python -m harness.rollout.worker`, JSON settings on stdin.

Settings travel on stdin, so that keys are neither on a command line nor in an environment that a
framework reads.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Coroutine
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.records import Outcome
from harness.util import start_trace

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """A worker's settings."""

    agent: str
    worker_id: int
    store_url: str
    gateway_url: str
    control_key: str
    concurrency: int
    heartbeat_file: str
    store_key: str = ""
    agent_source: str = ""
    """Hash that the agent's Python files must have (`modules_hash`); empty where it is not known."""

    def dump(self) -> str:
        """Return one line of JSON for the worker's standard input."""
        return json.dumps(asdict(self))


def main() -> None:
    """Run rollouts until SIGTERM, the end of the parent or the loss of the store."""
    from harness.rollout.processes import die_with_parent

    die_with_parent()
    # Otherwise LiteLLM, which some frameworks import, downloads this map.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    settings = WorkerSettings(**json.loads(sys.stdin.readline()))
    level = os.environ.get("HARNESS_LOG_LEVEL", "WARNING")
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # These messages name the line at which an agent raised; records do not.
    logging.getLogger("harness.util.deadlines").setLevel(logging.INFO)

    from harness.plugins import agent_spec, load
    from harness.plugins.sources import modules_hash

    start_trace.born(f"runner {settings.worker_id}")
    with start_trace.span(f"imports of {settings.agent}"):
        spec = agent_spec(settings.agent)
        if settings.agent_source and modules_hash(spec) != settings.agent_source:
            sys.exit(
                f"the source of agent {settings.agent!r} has changed since the run began: "
                "put it back, or start a new run"
            )
        agent = load(spec)()  # first, so that an import error is reported at once

    with start_trace.span("imports of harness and the queue"):
        from harness.gateway.client import GatewayControl
        from harness.rollout.agent_host import AgentHost
        from harness.rollout.blocking_rollouts import BlockingRollouts, settle
        from harness.rollout.host import UnderWay
        from harness.rollout.queue_plugin import queue_backend
        from harness.runs.folder import endings

        backend = queue_backend()

    async def serve() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in endings():
            loop.add_signal_handler(number, stop.set)
        queue = backend.connect(settings.store_url, settings.store_key)
        control = GatewayControl(settings.gateway_url, settings.control_key)

        async def settled(one: UnderWay, outcome: Outcome, detail: str) -> None:
            """Settle a rollout in another thread's loop, which needs its own connections."""
            own = backend.connect(settings.store_url, settings.store_key)
            async with GatewayControl(settings.gateway_url, settings.control_key) as asks:
                await settle(own, asks, one, outcome, detail)
            await own.close()

        BlockingRollouts(loop, settled).watch()
        running = backend.run_rollouts(
            queue,
            AgentHost(agent, control, settings.agent),
            settings.worker_id,
            settings.concurrency,
            Path(settings.heartbeat_file).touch,
            settings.agent,
        )
        work = asyncio.create_task(running)
        waiter = asyncio.create_task(stop.wait())
        await asyncio.wait({work, waiter}, return_when=asyncio.FIRST_COMPLETED)
        work.cancel()
        try:
            await work
        except asyncio.CancelledError:
            pass
        finally:
            await queue.close()

    keep_running(serve())


def keep_running(main: Coroutine[Any, Any, None]) -> None:
    """Run like `asyncio.run`, but survive SystemExit or KeyboardInterrupt in an agent's task.

    asyncio would pass either to the awaiting task and end the loop with everything in progress.
    """
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        task = loop.create_task(main)
        asyncio.tasks._unregister_task(task)
        while not task.done():
            try:
                loop.run_until_complete(task)
            except (
                SystemExit,
                KeyboardInterrupt,
                RuntimeError,
            ) as error:  # RuntimeError: the loop was stopped
                if task.done() or loop.is_closed():
                    raise
                logger.warning("a task of an agent raised %s: %s", type(error).__name__, error)


if __name__ == "__main__":
    main()
