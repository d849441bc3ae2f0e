"""Forward one call to an upstream and its answer back, and record it exactly once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import aiohttp
from starlette.types import Send

from harness.gateway.answers import (
    SeenIds,
    StreamedAnswer,
    aborted,
    check_no_error,
    hide,
    read_answer,
)
from harness.gateway.attempts import AttemptLog, Call
from harness.gateway.failures import Refusal, UpstreamStatus, deadline_passed
from harness.gateway.forcing import ForcedRequest, force
from harness.gateway.reply_forms import Names
from harness.gateway.request import Request
from harness.gateway.responses import AgentResponse, as_stream
from harness.gateway.settings import GatewaySettings
from harness.gateway.upstream_client import UpstreamClient
from harness.gateway.upstreams import Pools, Upstream
from harness.gateway.wire import event_data, parse, split_events, written
from harness.records import request_id

logger = logging.getLogger(__name__)

ABORTED_WAIT_S = 0.2
"""Seconds before a call is repeated after the upstream aborted its answer."""
FIRST_WAIT_S = 1.0
"""Wait after a refusal for the rate without `Retry-After`, in seconds; doubled each time."""
LONGEST_WAIT_S = 30.0
"""Longest of these waits."""
SHORTEST_WAIT_S = 0.1
"""Shortest wait, whatever a server names; doubled each time up to `FIRST_WAIT_S`."""


class Relay:
    """Serves the calls of all attempts."""

    def __init__(self, settings: GatewaySettings, pools: Pools) -> None:
        self._pools = pools
        self.outcomes: Counter[str] = Counter()
        """How calls ended: `transition`, or a failure's code."""
        self.rate_limits = 0
        """The number of calls refused by a rate limit."""
        self.rate_limit_s = 0.0
        """Seconds that calls waited because of rate limits."""
        self._settings = settings
        self._seen = SeenIds(settings.remembered_ids)
        self._client = UpstreamClient(settings.connect_timeout_s)

    async def start(self) -> None:
        """Open the connection pool; needs the running loop."""
        await self._client.start()

    async def stop(self) -> None:
        """Close the connection pool."""
        await self._client.stop()

    async def serve(
        self, log: AttemptLog, by: tuple[str, str], request: Request, send: Send
    ) -> None:
        """Serve one call of a role and its branch: read, force, forward, record and answer it."""
        call = log.begin(*by)
        outgoing = AgentResponse(send, request.spoken)
        if len(log.calls) > (most := self._settings.calls_at_once):
            self.outcomes["too_many_calls"] += 1
            await self._refuse(
                call,
                Refusal("too_many_calls", f"the attempt has {most} calls under way"),
                outgoing,
            )
            return
        try:
            await self._limited(call, request, outgoing)
        except Refusal as refusal:
            await self._refuse(call, call.blamed(refusal), outgoing)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if call.aborted_by is None or task is None:
                call.fail(Refusal("upstream_unreachable", "the gateway was stopped"))
                raise
            task.uncancel()
            await self._refuse(call, call.aborted_by, outgoing)
        except Exception as error:  # a bug of the gateway, recorded with a code like any failure
            logger.exception("gateway error in a call of %s", call.who)
            await self._refuse(
                call, Refusal("gateway_error", f"{type(error).__name__}: {error}"), outgoing
            )
        finally:
            self.outcomes[call.outcome] += 1

    async def _limited(self, call: Call, request: Request, outgoing: AgentResponse) -> None:
        limit_s, left_s = self._settings.call_timeout_s, call.log.left_s
        if left_s <= 0:  # too late to read the request
            call.ask({})
            raise deadline_passed()
        watcher = None
        try:
            async with asyncio.timeout(min(limit_s, left_s)) as limit:
                asked = await request.asked()
                call.ask(asked)
                left_s = call.log.left_s
                # The call's time begins here. Use the monotonic clock: uvloop's own clock does not
                # advance while it serves a batch.
                limit.reschedule(time.monotonic() + min(limit_s, left_s))
                watcher = asyncio.create_task(_watch(request, call))
                await self._call(call, asked, outgoing)
        except TimeoutError as error:
            aborts = f"; the upstream aborted {call.aborts} answers" if call.aborts else ""
            if limit_s < left_s:
                text = f"no answer within {limit_s:g} s{aborts}"
                raise Refusal("upstream_timeout", text) from error
            raise deadline_passed(aborts) from error
        finally:
            if watcher is not None:
                watcher.cancel()

    async def _call(self, call: Call, asked: dict[str, Any], outgoing: AgentResponse) -> None:
        pool, upstream = await self._pools.acquire(call.role, call.log.rollout_id)
        try:
            token_ids = pool.token_ids
            request = force(
                call.demonstrated(asked),
                call.sampling,
                pool.model,
                token_ids=token_ids,
                agents_model=self._pools.policy.model,
            )
            call.model, call.overridden = pool.model, request.overridden
            exchange = _Exchange(
                call, request, outgoing, call.names(asked, pool.model), token_ids=token_ids
            )
            answered = False
            while not answered:
                try:
                    async with self._client.post(call, upstream, request) as response:
                        answered = await self._carry(exchange, response)
                    self._client.note_taken(upstream, request)
                except UpstreamStatus as refusal:
                    if not refusal.asks_to_wait or outgoing.begun:
                        raise
                    await self._wait_for_rate(call, upstream, refusal)
                    continue
                if not answered:
                    call.aborts += 1
                    await asyncio.sleep(ABORTED_WAIT_S)
                    call.upstream_s += ABORTED_WAIT_S
        except UpstreamStatus as refusal:
            if refusal.may_be_length and await self._client.takes_shorter(call, upstream, request):
                refusal.call_too_long()
            elif refusal.blames_request and await self._client.takes_ours(call, upstream, request):
                refusal.cause = "agent"
            raise
        finally:
            pool.release(upstream)

    async def _wait_for_rate(self, call: Call, upstream: Upstream, refusal: UpstreamStatus) -> None:
        """Wait for as long as a rate-limiting upstream requires.

        Raises:
            UpstreamStatus: The wait would end after the attempt's deadline or the call's limit.
        """
        shortest_s = min(SHORTEST_WAIT_S * 2**call.rate_limits, FIRST_WAIT_S)
        if refusal.retry_after_s is None:
            wait_s = min(FIRST_WAIT_S * 2**call.rate_limits, LONGEST_WAIT_S)
        else:
            wait_s = max(refusal.retry_after_s, shortest_s)
        call.rate_limits += 1
        self.rate_limits += 1
        if wait_s >= min(call.log.left_s, self._settings.call_timeout_s):
            raise refusal
        if self.rate_limits == 1:
            logger.warning(
                "%s limits its rate (%s); calls wait as it asks, until their attempt's deadline",
                upstream.base_url,
                refusal,
            )
        await asyncio.sleep(wait_s)
        call.upstream_s += wait_s
        call.rate_limit_s += wait_s
        self.rate_limit_s += wait_s

    async def _carry(self, exchange: _Exchange, response: aiohttp.ClientResponse) -> bool:
        """Pass an answer back; return False if the upstream aborted it to change its weights."""
        if not exchange.request.stream:
            return await self._whole(exchange, response)
        began = time.perf_counter()
        first = await response.content.readany()
        exchange.call.upstream_s += time.perf_counter() - began
        if first.lstrip().startswith(b"{"):  # the upstream does not stream, or it reports an error
            return await self._whole(exchange, response, first)
        return await self._stream(exchange, response, first)

    async def _whole(
        self, exchange: _Exchange, response: aiohttp.ClientResponse, first: bytes = b""
    ) -> bool:
        """Pass a whole answer back, of which `first` has been read."""
        call, request = exchange.call, exchange.request
        began = time.perf_counter()
        raw = first + await response.read()
        call.upstream_s += time.perf_counter() - began
        completion = parse(raw)
        check_no_error(completion, raw)
        if aborted(completion):
            return False
        answer = read_answer(completion, token_ids=exchange.token_ids, names=exchange.names)
        self._hide(exchange, completion)
        if request.stream:  # the upstream does not stream, so send its answer as one chunk
            body, streams = as_stream(completion), True
        else:
            body, streams = exchange.outgoing.formed(written(completion), completion)
        # Recorded once nothing but sending is left: a call that fails here leaves no transition.
        self._claim(exchange, answer.response_id)
        call.succeed(answer)
        await exchange.outgoing.reply(body, streams)
        return True

    async def _stream(
        self, exchange: _Exchange, response: aiohttp.ClientResponse, first: bytes
    ) -> bool:
        """Pass a streamed answer on chunk by chunk; `first` has been read already."""
        call, outgoing = exchange.call, exchange.outgoing
        streamed = StreamedAnswer(token_ids=exchange.token_ids, names=exchange.names)
        call.streamed = streamed
        buffer = bytearray()
        piece = first
        claimed = ended = False
        while not ended:
            if not piece:
                ended = True
                piece = b"\n\n" if buffer.strip() else b""  # it may lack its closing line
            buffer += piece
            out = []
            for event in split_events(buffer):
                data = event_data(event)
                if data is None:
                    if event.startswith(b":"):
                        out.append(event)
                    continue
                if data == b"[DONE]":
                    self._end_stream(call, streamed)
                    out.append(b"data: [DONE]\n\n")
                    continue
                chunk = parse(data)
                check_no_error(chunk, data)
                if aborted(chunk):  # a part has been sent, so the call cannot be repeated
                    raise Refusal(
                        "upstream_aborted", "the upstream cut the answer off", upstream_status=200
                    )
                streamed.feed(chunk)
                if not claimed and streamed.response_id is not None:
                    self._claim(exchange, streamed.response_id)
                    claimed = True
                if streamed.show(chunk):
                    self._hide(exchange, chunk)
                    out.append(b"data: " + written(chunk) + b"\n\n")
            if out:
                await outgoing.part(b"".join(out))
            if not ended:
                began = time.perf_counter()
                piece = await response.content.readany()
                call.upstream_s += time.perf_counter() - began
        self._end_stream(call, streamed)
        await outgoing.end()
        return True

    def _claim(self, exchange: _Exchange, response_id: str) -> None:
        """Register an answer's id, which matters only if the answer has exact token ids.

        Raises:
            Refusal: `duplicate_response_id`.
        """
        if exchange.token_ids:
            self._seen.claim(response_id)

    def _hide(self, exchange: _Exchange, answer: dict[str, Any]) -> None:
        """Remove fields that the agent did not request, whether gateway or upstream added them."""
        hide(
            answer,
            token_ids=not exchange.request.shows_token_ids,
            logprobs=not exchange.request.shows_logprobs,
        )

    def _end_stream(self, call: Call, streamed: StreamedAnswer) -> None:
        if call.outcome:
            return
        if not streamed.finished:
            raise Refusal(
                "upstream_dropped", "the stream ended before its answer", upstream_status=200
            )
        call.succeed(streamed.answer())

    async def _refuse(self, call: Call, refusal: Refusal, outgoing: AgentResponse) -> None:
        call.fail(refusal)
        if refusal.status == 503 and not any(name == b"retry-after" for name, _ in refusal.headers):
            refusal.headers.append((b"retry-after", str(self._settings.retry_after_s).encode()))
        # A new list, since several calls may end with the same refusal.
        others = [header for header in refusal.headers if header[0] != b"x-request-id"]
        refusal.headers = [*others, (b"x-request-id", request_id(call.index).encode())]
        await outgoing.refuse(refusal)


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One call: its forced request, how its answer is read, and where the answer goes."""

    call: Call
    request: ForcedRequest
    outgoing: AgentResponse
    names: Names
    token_ids: bool


async def _watch(request: Request, call: Call) -> None:
    """Abort the call if its agent disconnects."""
    call.abort(await request.ended())
