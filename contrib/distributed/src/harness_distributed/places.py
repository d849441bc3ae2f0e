"""The store's server: a place with agentlightning's store for each launch of a run, behind one key.

| request | answer |
|---|---|
| `GET /health` | 200, without a key |
| `GET /runs` | invitations of active runs, those with the fewest runners first |
| `PUT /runs/LAUNCH` | 201: the place was created, 200: it existed; 409: a later launch has one |
| `DELETE /runs/LAUNCH` | the place is removed with all its data |
| `/runs/LAUNCH/v1/...` | the routes of the plugin's `StoreServer`; 503: no place |

A launch has a name of its own, `RUN.LETTERS`. The place of a killed launch is removed when the
run's next launch creates its own, or `FORGET_S` after the last request of the killed one.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentlightning.types import NamedResources
from pydantic import BaseModel, JsonValue
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route

from harness.rollout.remote_runners import watch_joined
from harness_agentlightning_queue.queue import LightningQueue
from harness_agentlightning_queue.store import RunStore, StoreServer

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

HEARD_S = 5.0
"""Seconds without a request after which runners regard a run as ended."""
FORGET_S = 600.0
"""Seconds without a request after which a place is removed."""
REMEMBERED = 10_000
"""Number of replaced launches to remember."""


class Launch(BaseModel):
    """A launch's description of itself."""

    invitation: dict[str, JsonValue]
    resources: NamedResources


@dataclass(eq=False)
class Place:
    """The data of one launch of a run.

    Attributes:
        heard: Time of the launch's last request, by the monotonic clock.
    """

    run: str
    invitation: dict[str, JsonValue]
    store: RunStore
    app: ASGIApp
    watching: asyncio.Task[None]
    heard: float = field(default_factory=time.monotonic)

    @classmethod
    async def made(cls, description: Launch) -> Place:
        """Create an empty place that detects silent runners."""
        store = RunStore(thread_safe=True)
        await store.add_resources(description.resources)
        app = StoreServer(store).app
        assert app is not None

        @app.exception_handler(ValueError)
        async def unknown(request: Request, error: ValueError) -> Response:
            """Return agentlightning's answer for an unknown rollout.

            Its clients then ask only once.
            """
            return PlainTextResponse(str(error), 400)

        return cls(
            str(description.invitation["run"]),
            description.invitation,
            store,
            app,
            asyncio.create_task(watch_joined(LightningQueue(store))),
        )


class Places:
    """All places, and the ASGI application that serves them.

    Args:
        key: Key that every request except `/health` must show.
    """

    def __init__(self, key: str) -> None:
        self._key = f"Bearer {key}".encode()
        self._places: dict[str, Place] = {}
        self._superseded: dict[str, None] = {}
        self._making = asyncio.Lock()
        self._app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/runs", self._list),
                Route("/runs/{launch}", self._put, methods=["PUT"]),
                Route("/runs/{launch}", self._delete, methods=["DELETE"]),
                Mount("/runs/{launch}", self._place),
            ],
            lifespan=self._lifespan,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] == "http" and scope["path"] != "/health":
            shown = next(
                (value for name, value in scope["headers"] if name == b"authorization"), b""
            )
            if not hmac.compare_digest(shown, self._key):
                refused = PlainTextResponse(
                    "the store requires its key: Authorization: Bearer KEY\n", 401
                )
                await refused(scope, receive, send)
                return
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        sweeping = asyncio.create_task(self._sweep())
        yield
        sweeping.cancel()
        for launch in list(self._places):
            self._drop(launch)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(HEARD_S)
            for launch, place in list(self._places.items()):
                if time.monotonic() - place.heard > FORGET_S:
                    self._drop(launch)

    def _drop(self, launch: str) -> None:
        if (place := self._places.pop(launch, None)) is not None:
            place.watching.cancel()

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _list(self, request: Request) -> Response:
        now = time.monotonic()
        alive = [(launch, one) for launch, one in self._places.items() if now - one.heard < HEARD_S]
        alive.sort(key=lambda item: item[1].store.taking_part())
        return JSONResponse(
            {"runs": [{**one.invitation, "place": launch} for launch, one in alive]}
        )

    async def _put(self, request: Request) -> Response:
        launch = request.path_params["launch"]
        if launch in self._superseded:
            return PlainTextResponse("a later launch of this run has taken its place", 409)
        if (place := self._places.get(launch)) is not None:
            place.heard = time.monotonic()
            return Response(status_code=200)
        try:
            description = Launch.model_validate_json(await request.body())
            run = str(description.invitation["run"])
        except (ValueError, LookupError) as error:
            return PlainTextResponse(f"invalid description of a run: {error}", 400)
        async with self._making:
            for other in [
                name for name, one in self._places.items() if one.run == run and name != launch
            ]:
                self._superseded[other] = None
                self._drop(other)
            for oldest in list(self._superseded)[:-REMEMBERED]:
                del self._superseded[oldest]
            if launch not in self._places:
                self._places[launch] = await Place.made(description)
        return Response(status_code=201)

    async def _delete(self, request: Request) -> Response:
        self._drop(request.path_params["launch"])
        return Response(status_code=204)

    async def _place(self, scope: Scope, receive: Receive, send: Send) -> None:
        launch = scope["path_params"]["launch"]
        if (place := self._places.get(launch)) is not None:
            await place.app(scope, receive, send)
            return
        away = PlainTextResponse(f"there is no launch {launch} here, or not yet", 503)
        await away(scope, receive, send)
