"""A real OpenAI-compatible HTTP server with scripted replies, for tests and benchmarks.

    with ScriptedServer(["a reply", Reply.failure(500), Reply("half a", finish_reason="length")]) as
    server:
        ...  # point a client at server.base_url
        server.requests[0].body["messages"]

In a process of its own: `python -m harness.mock_model.server --reply "SELECT 1" --delay-s 0.1`.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import itertools
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import orjson
from aiohttp import web

from harness.mock_model.completion import Reply as Reply
from harness.mock_model.completion import ScriptedCompletion
from harness.records import CHECK_HEADER

KNOWN_FIELDS = frozenset(
    """
    messages model audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens
    max_tokens metadata modalities n parallel_tool_calls prediction presence_penalty prompt_cache_key
    reasoning_effort response_format safety_identifier seed service_tier stop store stream stream_options
    temperature tool_choice tools top_logprobs top_p user verbosity web_search_options
    """.split()
)
"""Fields of a chat completion request that a plain OpenAI server accepts."""


@dataclass(slots=True, eq=False)
class ReceivedRequest:
    """One received request.

    Attributes:
        index: Its number among all requests, from 0.
        turn: Its number among the requests of the same conversation, from 0.
        conversation: Identifies the conversation, see `conversation_of`.
        path: The URL's path.
        headers: Headers by name in lower case.
        raw: Bytes of the body.
        body: The parsed body.
        aborted: Set when the client disconnected before the answer was complete.
    """

    index: int
    turn: int
    conversation: str
    path: str
    headers: Mapping[str, str]
    raw: bytes
    body: Mapping[str, Any]
    aborted: threading.Event = field(default_factory=threading.Event)

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """The messages of the request."""
        messages: Sequence[Mapping[str, object]] = self.body.get("messages") or []
        return messages

    @property
    def params(self) -> dict[str, Any]:
        """Everything but messages, model and stream."""
        return {
            name: self.body[name] for name in self.body.keys() - {"messages", "model", "stream"}
        }


Script = Callable[[ReceivedRequest], Reply | str] | Sequence[Reply | str]
"""A function of the request, or the replies in order; after the last one it answers 500."""


def conversation_of(messages: Sequence[Mapping[str, object]]) -> str:
    """Return the first user message up to the query; all roles of a harness rollout share it."""
    for message in messages:
        if message.get("role") == "user":
            return str(message.get("content")).partition("\n\nQuery:\n")[0]
    return ""


class ScriptedServer:
    """The server, in a thread of this process. Use it as a context manager.

    Args:
        script: The replies.
        token_ids: Report token ids (bytes of the text, then an end) and log-probabilities on
            request, as vLLM does. If not, unknown fields of a request are answered 400, as a strict
            OpenAI server does.
        model: The model's name; a request for another one is answered 404.
        host: Address to bind.
        port: Port to bind; 0 picks a free one.
        remember: Keep every request in `requests`.
    """

    def __init__(
        self,
        script: Script,
        *,
        token_ids: bool = True,
        model: str = "scripted",
        host: str = "127.0.0.1",
        port: int = 0,
        remember: bool = True,
    ) -> None:
        self.requests: list[ReceivedRequest] = []
        self.model = model
        self._script = script
        self._token_ids = token_ids
        self._host = host
        self._port = port
        self._remember = remember
        self._turns: Counter[str] = Counter()
        self._numbers = itertools.count()
        self._arrived = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def base_url(self) -> str:
        """Ends in `/v1`."""
        return f"http://{self._host}:{self._port}/v1"

    def start(self) -> Self:
        """Start to listen."""
        ready: threading.Event = threading.Event()
        failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(ready, failed), daemon=True)
        self._thread.start()
        ready.wait()
        if failed:
            raise failed[0]
        return self

    def stop(self) -> None:
        """Stop the server and abort requests in progress."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
            self._loop = self._thread = None

    def wait_for_requests(self, count: int, timeout_s: float = 10.0) -> Sequence[ReceivedRequest]:
        """Wait until `count` requests have been received.

        Raises:
            TimeoutError: Fewer were received in time.
        """
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self.requests) >= count, timeout_s):
                raise TimeoutError(
                    f"{len(self.requests)} of {count} requests within {timeout_s:g} s"
                )
            return list(self.requests)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def serve(self, ready: Callable[[], None], stopping: asyncio.Event) -> None:
        """Serve in the running loop until `stopping` is set."""
        app = web.Application(client_max_size=2**30)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._complete)
        runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, self._host, self._port, backlog=2048)
            await site.start()
            self._port = runner.addresses[0][1]
            ready()
            await stopping.wait()
        finally:
            await runner.cleanup()

    def _run(self, ready: threading.Event, failed: list[BaseException]) -> None:
        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            self._stopping = asyncio.Event()
            await self.serve(ready.set, self._stopping)

        try:
            asyncio.run(main())
        except OSError as error:
            failed.append(error)
        finally:
            ready.set()

    async def _models(self, request: web.Request) -> web.Response:
        return _json(
            {
                "object": "list",
                "data": [{"id": self.model, "object": "model", "owned_by": "script"}],
            }
        )

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        try:
            body = orjson.loads(raw)
            messages = body["messages"]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            return _error(400, f"not a chat completion request: {error!r}")
        if CHECK_HEADER in request.headers:
            return self._answer_check(body)
        conversation = conversation_of(messages)
        headers = {name.lower(): value for name, value in request.headers.items()}
        with self._arrived:
            turn = self._turns[conversation]
            self._turns[conversation] += 1
            received = ReceivedRequest(
                next(self._numbers), turn, conversation, request.path, headers, raw, body
            )
            if self._remember:
                self.requests.append(received)
            self._arrived.notify_all()
        try:
            return await self._answer(request, received)
        except (asyncio.CancelledError, ConnectionError):
            received.aborted.set()
            raise

    def _answer_check(self, body: Mapping[str, Any]) -> web.Response:
        """Answer the check of an endpoint before a run, which is no call of an agent's script."""
        if body.get("model") != self.model:
            return _error(404, f"The model {body.get('model')!r} does not exist.")
        completion = ScriptedCompletion(self.model, body, Reply("Hi"), self._token_ids)
        return _json(completion.whole())

    async def _answer(self, request: web.Request, received: ReceivedRequest) -> web.StreamResponse:
        body = received.body
        if not self._token_ids and (unknown := body.keys() - KNOWN_FIELDS):
            return _error(
                400, f"Unrecognized request argument supplied: {', '.join(sorted(unknown))}"
            )
        if body.get("model") != self.model:
            return _error(404, f"The model {body.get('model')!r} does not exist.")
        reply = self._next(received)
        if reply.delay_s:
            await asyncio.sleep(reply.delay_s)
        if reply.hang:
            await asyncio.Event().wait()
        if reply.drop == "before":
            return _drop(request)
        if reply.status != 200:
            return _error(reply.status, reply.text, reply.headers)
        completion = ScriptedCompletion(self.model, body, reply, self._token_ids)
        if body.get("stream") and reply.raw is None:
            return await self._stream(request, completion, reply)
        whole = orjson.dumps(completion.whole()) if reply.raw is None else reply.raw
        if reply.drop == "midway":
            response = web.StreamResponse(headers={"content-length": str(len(whole))})
            await response.prepare(request)
            await response.write(whole[: len(whole) // 2])
            return _drop(request, response)
        return web.Response(body=whole, content_type="application/json", headers=reply.headers)

    async def _stream(
        self, request: web.Request, completion: ScriptedCompletion, reply: Reply
    ) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"content-type": "text/event-stream", **reply.headers}
        )
        await response.prepare(request)
        chunks = list(completion.chunks())
        for number, chunk in enumerate(chunks):
            if reply.drop == "midway" and number == len(chunks) // 2:
                return _drop(request, response)
            await response.write(b"data: " + orjson.dumps(chunk) + b"\n\n")
            if reply.chunk_delay_s:
                await asyncio.sleep(reply.chunk_delay_s)
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _next(self, received: ReceivedRequest) -> Reply:
        if callable(self._script):
            reply = self._script(received)
        elif received.index < len(self._script):
            reply = self._script[received.index]
        else:
            reply = Reply.failure(500, f"the script has {len(self._script)} replies and no more")
        return Reply(reply) if isinstance(reply, str) else reply


def _json(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    return web.Response(
        body=orjson.dumps(value), status=status, content_type="application/json", headers=headers
    )


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    error = {"message": message, "type": "scripted", "code": status, "param": None}
    return _json({"error": error}, status, headers)


def _drop(request: web.Request, response: web.StreamResponse | None = None) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort() if response is None else request.transport.close()
    return response or web.Response()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until killed; writes `{"port": N}` to stdout once it listens."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.mock_model.server", description=__doc__
    )
    parser.add_argument(
        "--reply", default="```sql\nSELECT 1\n```", help="what the model always says"
    )
    parser.add_argument("--delay-s", type=float, default=0.0, help="time before each answer")
    parser.add_argument(
        "--script", metavar="MODULE:NAME", help="a script to import instead of --reply"
    )
    parser.add_argument(
        "--plain", action="store_true", help="know nothing of token ids, refuse unknown fields"
    )
    parser.add_argument(
        "--forget", action="store_true", help="keep no record of requests, for long benchmarks"
    )
    parser.add_argument("--model", default="scripted")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args(arguments)
    reply = Reply(options.reply, delay_s=options.delay_s)
    script: Script = lambda request: reply  # noqa: E731
    if options.script:
        module, _, name = options.script.partition(":")
        script = getattr(importlib.import_module(module), name)
    server = ScriptedServer(
        script,
        token_ids=not options.plain,
        model=options.model,
        host=options.host,
        port=options.port,
        remember=not options.forget,
    )

    async def serve() -> None:
        def ready() -> None:
            sys.stdout.write(json.dumps({"port": server._port}) + "\n")
            sys.stdout.flush()

        await server.serve(ready, asyncio.Event())

    try:
        import uvloop

        uvloop.run(serve())
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
