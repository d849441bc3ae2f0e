"""Carries one call to an upstream and its answer back, and leaves exactly one record of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Literal

import aiohttp
import orjson
from starlette.types import Send

from harness.gateway.answers import (
    SeenIds,
    StreamedAnswer,
    aborted,
    event_data,
    fill_arguments,
    hide,
    read_answer,
    split_events,
)
from harness.gateway.attempts import AttemptLog, Call
from harness.gateway.dialects import Spoken
from harness.gateway.failures import Refusal, UpstreamStatus, deadline_passed
from harness.gateway.forcing import PASSED, ForcedRequest, force
from harness.gateway.request import Request
from harness.gateway.settings import GatewaySettings
from harness.gateway.upstreams import Pools, Upstream

logger = logging.getLogger(__name__)

ABORTED_WAIT_S = 0.2
"""Between an answer that the upstream cut off and the same call once more."""
_JSON = [(b"content-type", b"application/json")]
_EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class Relay:
    """Serves the calls of all attempts."""

    def __init__(self, settings: GatewaySettings, pools: Pools) -> None:
        self._pools = pools
        self.outcomes: Counter[str] = Counter()
        """How calls ended: `transition`, or a failure's code."""
        self._settings = settings
        self._seen = SeenIds(settings.remembered_ids)
        self._session: aiohttp.ClientSession | None = None
        self._takes: set[tuple[str, str, frozenset[str]]] = set()
        """Upstream, model and names of the run's own parameters of requests that were answered."""

    async def start(self) -> None:
        """Open the connection pool; needs the running loop."""
        self._session = aiohttp.ClientSession(
            # Shorter than the 5 s after which uvicorn, and so vLLM, closes an idle connection: a request
            # sent on a connection that is just being closed fails, and it must not be sent twice.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=3.0),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=self._settings.connect_timeout_s
            ),
            auto_decompress=True,
            trust_env=False,
        )

    async def stop(self) -> None:
        """Close the connection pool."""
        if self._session is not None:
            await self._session.close()

    async def serve(
        self, log: AttemptLog, by: tuple[str, str], request: Request, send: Send
    ) -> None:
        """Serve one call of a role and its branch: read, forced upstream, its answer recorded and handed back."""
        call = log.begin(*by)
        answering = _Answering(send, request.spoken)
        if len(log.calls) > (most := self._settings.calls_at_once):
            self.outcomes["too_many_calls"] += 1
            await self._refuse(
                call,
                Refusal("too_many_calls", f"the attempt has {most} calls under way"),
                answering,
            )
            return
        try:
            await self._limited(call, request, answering)
        except Refusal as refusal:
            await self._refuse(call, call.blamed(refusal), answering)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if call.aborted_by is None or task is None:
                call.fail(Refusal("upstream_unreachable", "the gateway was stopped"))
                raise
            task.uncancel()
            await self._refuse(call, call.aborted_by, answering)
        except Exception as error:  # a bug of the gateway: typed and recorded like everything else
            logger.exception("a call of %s", call.who)
            await self._refuse(
                call, Refusal("gateway_error", f"{type(error).__name__}: {error}"), answering
            )
        finally:
            self.outcomes[call.outcome] += 1

    async def _limited(self, call: Call, request: Request, answering: _Answering) -> None:
        limit_s, left_s = self._settings.call_timeout_s, call.log.left_s
        if left_s <= 0:  # too late, whatever it asks
            call.ask({})
            raise deadline_passed()
        watcher = None
        try:
            async with asyncio.timeout(min(limit_s, left_s)) as limit:
                asked = await request.asked()
                call.ask(asked)
                left_s = call.log.left_s
                # The call's time begins here. Not by the loop's clock: uvloop's stands still while it serves a batch.
                limit.reschedule(time.monotonic() + min(limit_s, left_s))
                watcher = asyncio.create_task(_watch(request, call))
                await self._call(call, asked, answering)
        except TimeoutError as error:
            if limit_s < left_s:
                raise Refusal("upstream_timeout", f"no answer within {limit_s:g} s") from error
            raise deadline_passed() from error
        finally:
            if watcher is not None:
                watcher.cancel()

    async def _call(self, call: Call, asked: dict[str, Any], answering: _Answering) -> None:
        pool, upstream = await self._pools.acquire(call.role, call.log.rollout_id)
        try:
            token_ids = pool.token_ids
            request = force(
                asked, call.sampling, pool.model, token_ids=token_ids, told=self._pools.policy.model
            )
            call.model, call.overridden = pool.model, request.overridden
            answered = False
            while not answered:
                async with self._post(call, upstream, request) as response:
                    if request.stream:
                        answered = await self._stream(call, request, response, answering, token_ids)
                    else:
                        answered = await self._whole(call, request, response, answering, token_ids)
                self._takes.add(_ours(upstream, request))
                if not answered:
                    await asyncio.sleep(ABORTED_WAIT_S)
                    call.upstream_s += ABORTED_WAIT_S
        except UpstreamStatus as refusal:
            if refusal.blames_request and await self._takes_ours(call, upstream, request):
                refusal.cause = "agent"
            raise
        finally:
            pool.release(upstream)

    async def _takes_ours(self, call: Call, upstream: Upstream, request: ForcedRequest) -> bool:
        """Whether the upstream answers a request of the run's own parameters: then what it refuses is the agent's.

        Asked once of a kind of request, where no call with these parameters has been answered yet.
        """
        ours = _ours(upstream, request)
        if ours not in self._takes:
            own = {name: value for name, value in request.body.items() if name not in PASSED}
            asked = {**own, "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 1}
            try:
                async with self._post(call, upstream, replace(request, body=asked)):
                    self._takes.add(ours)
            except Refusal as refusal:
                logger.info(
                    "%s does not answer a request of the run's own: %s",
                    upstream.base_url,
                    refusal.detail,
                )
        return ours in self._takes

    @asynccontextmanager
    async def _post(
        self, call: Call, upstream: Upstream, request: ForcedRequest
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send the request and wait for the answer's head.

        Raises:
            Refusal: No connection, no answer, or an error status.
        """
        assert self._session is not None
        began = time.perf_counter()
        data = orjson.dumps(request.body)
        try:
            async with self._session.post(
                upstream.url, data=data, headers=upstream.headers, allow_redirects=False
            ) as response:
                call.upstream_s += time.perf_counter() - began
                if response.status != 200:
                    raise UpstreamStatus(
                        response.status,
                        await response.read(),
                        response.headers.get("content-type", "application/octet-stream"),
                        response.headers.get("retry-after"),
                    )
                yield response
        except aiohttp.ConnectionTimeoutError as error:
            upstream.mark_down()
            message = f"no connection to {upstream.base_url} within {self._settings.connect_timeout_s:g} s"
            raise Refusal("connect_timeout", message) from error
        except aiohttp.ClientConnectorError as error:
            upstream.mark_down()
            raise Refusal(
                "upstream_unreachable", f"no connection to {upstream.base_url}: {error.os_error}"
            ) from error
        except aiohttp.ClientPayloadError as error:
            message = f"{upstream.base_url} broke off its answer: {error}"
            raise Refusal("upstream_dropped", message, upstream_status=200) from error
        except aiohttp.ClientError as error:
            message = f"no answer from {upstream.base_url}: {type(error).__name__}: {error}"
            raise Refusal("upstream_unreachable", message) from error

    async def _whole(
        self,
        call: Call,
        request: ForcedRequest,
        response: aiohttp.ClientResponse,
        answering: _Answering,
        token_ids: bool,
    ) -> bool:
        """Hand an answer back; False where the upstream cut it off to change its weights."""
        began = time.perf_counter()
        raw = await response.read()
        call.upstream_s += time.perf_counter() - began
        completion = _parse(raw)
        if aborted(completion):
            return False
        answer = read_answer(completion, token_ids=token_ids)
        if fill_arguments(completion):
            answer = read_answer(completion, token_ids=token_ids)
            raw = _written(completion)
        if token_ids and not (request.shows_logprobs and request.shows_token_ids):
            hide(
                completion,
                token_ids=not request.shows_token_ids,
                logprobs=not request.shows_logprobs,
            )
            raw = _written(completion)
        self._seen.claim(answer.response_id)
        call.succeed(answer)
        await answering.completion(raw, completion)
        return True

    async def _stream(
        self,
        call: Call,
        request: ForcedRequest,
        response: aiohttp.ClientResponse,
        answering: _Answering,
        token_ids: bool,
    ) -> bool:
        call.streamed = streamed = StreamedAnswer(token_ids=token_ids)
        hides = token_ids and not (request.shows_logprobs and request.shows_token_ids)
        buffer = bytearray()
        claimed = False
        while True:
            began = time.perf_counter()
            piece = await response.content.readany()
            call.upstream_s += time.perf_counter() - began
            if not piece:
                break
            buffer += piece
            out = []
            for event in split_events(buffer):
                data = event_data(event)
                if data is None or data == b"[DONE]":
                    if data is not None:
                        self._end_stream(call, streamed)
                    out.append(event)
                    continue
                chunk = _parse(data)
                if aborted(chunk):  # part of it has gone out, so it cannot begin again
                    raise Refusal(
                        "upstream_aborted", "the upstream cut the answer off", upstream_status=200
                    )
                streamed.feed(chunk)
                filled = streamed.fill_arguments(chunk)
                if not claimed and streamed.response_id is not None:
                    self._seen.claim(streamed.response_id)
                    claimed = True
                if hides:
                    hide(
                        chunk,
                        token_ids=not request.shows_token_ids,
                        logprobs=not request.shows_logprobs,
                    )
                if hides or filled:
                    event = b"data: " + _written(chunk) + b"\n\n"
                out.append(event)
            if out:
                await answering.part(b"".join(out))
        self._end_stream(call, streamed)
        await answering.end()
        return True

    def _end_stream(self, call: Call, streamed: StreamedAnswer) -> None:
        if call.outcome:
            return
        if not streamed.finished:
            raise Refusal(
                "upstream_dropped", "the stream ended before its answer", upstream_status=200
            )
        call.succeed(streamed.answer())

    async def _refuse(self, call: Call, refusal: Refusal, answering: _Answering) -> None:
        call.fail(refusal)
        if refusal.status == 503:
            refusal.headers.append((b"retry-after", str(self._settings.retry_after_s).encode()))
        await answering.refuse(refusal)


class _Answering:
    """The answer to the agent: whole, or in parts that begin with the first."""

    def __init__(self, send: Send, spoken: Spoken | None) -> None:
        self._send = send
        self._spoken = spoken
        self._begun: Literal["", "whole", "parts"] = ""

    async def completion(self, raw: bytes, completion: dict[str, Any]) -> None:
        """A whole answer, in the form in which it was asked for."""
        streamed = False
        if self._spoken is not None:
            raw, streamed = self._spoken.answered(completion)
        await self.whole(200, _EVENTS if streamed else _JSON, raw)

    async def whole(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self._begun = "whole"
        length = (b"content-length", str(len(body)).encode())
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [*headers, length]}
        )
        await self._send({"type": "http.response.body", "body": body})

    async def part(self, body: bytes) -> None:
        if not self._begun:
            self._begun = "parts"
            await self._send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    async def refuse(self, refusal: Refusal) -> None:
        if not self._begun:
            body = self._spoken.refused(refusal.body) if self._spoken else refusal.body
            await self.whole(refusal.status, refusal.headers, body)
        elif self._begun == "parts":
            # The status has gone out as 200: an error event is what clients of a stream understand.
            await self.part(b"data: " + refusal.body + b"\n\n")
            await self.end()


async def _watch(request: Request, call: Call) -> None:
    """Abort the call when its agent hangs up."""
    call.abort(await request.ended())


def _ours(upstream: Upstream, request: ForcedRequest) -> tuple[str, str, frozenset[str]]:
    """An upstream, and the model and the names of what else the run, not the agent, put into a request."""
    return upstream.base_url, request.body["model"], frozenset(request.body.keys() - PASSED)


def _parse(raw: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Refusal(
            "bad_answer", f"the answer is not JSON: {error}", upstream_status=200
        ) from error
    if not isinstance(value, dict):
        raise Refusal("bad_answer", "the answer is not a JSON object", upstream_status=200)
    return value


def _written(answer: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(answer)
    except orjson.JSONEncodeError as error:  # it reads deeper nesting than it writes
        raise Refusal(
            "bad_answer", f"the answer cannot be passed on: {error}", upstream_status=200
        ) from error
