"""agentlightning's store over HTTP, with few requests a rollout.

A request takes about 2 ms of the one process that holds the store, and agentlightning's client makes one for each span
and one for the resources before each rollout: half of what a rollout of a small policy costs there. Here the spans of
an attempt travel together, and resources, which never change during a run, are asked for once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from agentlightning.store.base import LightningStore
from agentlightning.store.client_server import API_V1_AGL_PREFIX, LightningStoreClient, LightningStoreServer
from agentlightning.types import ResourcesUpdate, Span
from agentlightning.utils.server_launcher import PythonServerLauncher, PythonServerLauncherArgs

from harness.serving import BoundedServer, Limits, fitting

SPANS = "/harness/spans"


class _Launcher(PythonServerLauncher):
    """agentlightning's, of a server that bounds what runners leave unfinished."""

    def _create_uvicorn_server(self) -> BoundedServer:
        args = self.args
        limits = Limits(connections=fitting(), idle_s=args.timeout_keep_alive)
        return BoundedServer(
            self.app, limits, host=args.host, port=self._ensure_port(), log_level=args.log_level, loop="asyncio"
        )


class StoreServer(LightningStoreServer):
    """agentlightning's server with a route for many spans at once: in a thread, on a free port, silent.

    Args:
        host: Where it listens, and by which others reach it.
    """

    def __init__(self, store: LightningStore, host: str = "127.0.0.1") -> None:
        launcher = PythonServerLauncherArgs(
            host=host, access_host=host, launch_mode="thread", log_level=logging.CRITICAL
        )
        super().__init__(store, launcher_args=launcher)
        assert self.app is not None
        self.server_launcher = _Launcher(self.app, launcher)

        async def add_many_spans(spans: list[Span]) -> int:
            return len(await self.add_many_spans(spans))

        self.app.post(API_V1_AGL_PREFIX + SPANS, status_code=201)(add_many_spans)


class StoreClient(LightningStoreClient):
    """agentlightning's client, for a `StoreServer`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._resources: dict[str, ResourcesUpdate] = {}

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        """Store all spans or none, in one request. Returns what it was given."""
        await self._request_json("post", SPANS, json=[span.model_dump(mode="json") for span in spans])
        return spans

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        """Resources, from the server the first time."""
        if resources_id not in self._resources:
            found = await super().get_resources_by_id(resources_id)
            if found is None:
                return None
            self._resources[resources_id] = found
        return self._resources[resources_id]
