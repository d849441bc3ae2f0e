"""A policy server for machines without a GPU: an OpenAI-compatible endpoint over `Decoder`.

It answers `return_token_ids` and `logprobs` as vLLM does, and reads tool calls in the Hermes form
(`hermes`) or in Qwen2.5-Coder's (`harness.util.tool_calls`). Response ids are random, never reused.
`python -m harness_policy_server.server MODEL [LENGTH [PORT [NAME [PARSER]]]]` serves one and prints its
address.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import socket
import sys
import time
import uuid
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import orjson

from harness.policies import tool_parser
from harness.util import tool_calls
from harness.util.threads import computing_threads
from harness.util.tool_calls import offered
from harness_policy_server.hermes import CLOSE, OPEN, numbered, read_calls
from harness_policy_server.key_check import KEY, Application, KeyCheck
from harness_policy_server.requests import (
    RequestRefused,
    check_request,
    template_arguments,
    text_size,
)
from harness_policy_server.tokens import prompt_ids, stop_ids

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from harness.util.http_server import Limits
    from harness_policy_server.decoder import Generation

MAX_BODY_BYTES = 64 * 2**20
"""Largest body of a request, whatever the policy can read."""
SPARE_BODY_BYTES = 2**20
"""Bytes of a body for everything but the text of the prompt."""
MIN_CHARS = 2**16
"""Prompts of at most so many characters are always tokenised."""
CHAR_BYTES = 12
"""Most bytes that JSON takes for a character: two escapes, `\\ud83d\\ude00`."""
MAX_MESSAGE_CHARS = 500
"""Longest message of an error, which may quote the request."""
INLINE_CHARS = 2**14
"""Longest prompt that is tokenised on the event loop: a thread would cost about as much time."""


class PolicyServer:
    """A policy behind an OpenAI-compatible endpoint.

    Args:
        path: A local folder or a Hugging Face id.
        slots: Requests decoded at once.
        response_length: Tokens of a response where a request names no limit.
        max_length: Prompt and response together, in tokens.
        name: Name of the model; by default its path.
        key: Key that callers must send; none is required if empty.
        parser: `qwen2_5_coder` for calls in that form, any other name for Hermes; by default chosen
            by the policy's name.
    """

    def __init__(
        self,
        path: str,
        slots: int,
        response_length: int,
        max_length: int,
        trust_remote_code: bool = False,
        name: str = "",
        key: str = "",
        parser: str = "",
    ) -> None:
        import torch
        from transformers import AutoTokenizer

        from harness_policy_server.decoder import Decoder
        from harness_policy_server.loading import load_policy

        torch.set_num_threads(computing_threads())  # as the trainer has
        model = load_policy(path, trust_remote_code=trust_remote_code)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(
            path, trust_remote_code=trust_remote_code
        )
        stops = stop_ids(model.generation_config, self.tokenizer)
        self.decoder = Decoder(model, slots, max_length, stops)
        self.max_length = max_length
        self.response_length = response_length
        self.model_name = name or path
        self.parser = parser or tool_parser(path)
        self._key = key
        tags = {OPEN, CLOSE}
        added = self.tokenizer.added_tokens_decoder
        # Marks of tool calls are special tokens of some models, but part of a reply with calls.
        self._hidden = set()
        for number, token in added.items():
            if token.special and token.content not in tags:
                self._hidden.add(number)
        self._template_arguments = template_arguments(self.tokenizer)
        # No token has more characters than the longest name has bytes, so longer text cannot fit.
        longest_token = max(map(len, self.tokenizer.get_vocab()), default=1)
        self._max_chars = max(MIN_CHARS, max_length * longest_token)
        self._max_body = min(MAX_BODY_BYTES, SPARE_BODY_BYTES + CHAR_BYTES * self._max_chars)
        self._tokenising = concurrent.futures.ThreadPoolExecutor(1, "tokenising")
        self._serving: asyncio.Task[None] | None = None

    async def launch(self, port: int = 0, limits: Limits | None = None) -> str:
        """Start the endpoint on a loopback port, 0 for a free one, and return `host:port`."""
        from harness.util.http_server import BoundedServer, Limits, fitting

        listener = socket.socket()
        listener.bind(("127.0.0.1", port))
        listener.listen()  # from now on, connections wait instead of being refused
        server = BoundedServer(
            self._app(), limits or Limits(connections=fitting()), log_level="error"
        )
        self._serving = asyncio.create_task(server.serve(sockets=[listener]))
        return f"127.0.0.1:{listener.getsockname()[1]}"

    async def sample(
        self, prompt_ids: list[int], limit: int, sampling: dict[str, Any]
    ) -> Generation:
        """Return token ids and log-probabilities; `sampling` has `temperature`, `top_p`, `seed`."""
        from harness_policy_server.decoder import Generation

        loop = asyncio.get_running_loop()
        finished: asyncio.Future[None] = loop.create_future()

        def done(_: Generation) -> None:
            loop.call_soon_threadsafe(_set, finished)

        temperature, seed = sampling.get("temperature"), sampling.get("seed")
        generation = Generation(
            prompt_ids=prompt_ids,
            max_tokens=max(1, min(limit, self.max_length - len(prompt_ids))),
            temperature=1.0 if temperature is None else float(temperature),
            top_p=float(sampling.get("top_p") or 1.0),
            seed=None if seed is None else int(seed),
            done=done,
        )
        self.decoder.submit(generation)
        try:
            await finished
        except asyncio.CancelledError:
            generation.cancelled = True
            raise
        if generation.error is not None:
            raise generation.error
        return generation

    def _app(self) -> Application:
        from starlette.applications import Starlette
        from starlette.routing import Route

        app = Starlette(
            routes=[
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/health", self._models),
            ]
        )
        return KeyCheck(app, self._key) if self._key else app

    async def _models(self, request: Request) -> Response:
        return _json({"object": "list", "data": [{"id": self.model_name, "object": "model"}]})

    async def _chat(self, request: Request) -> Response:
        from starlette.requests import ClientDisconnect
        from starlette.responses import StreamingResponse

        try:
            raw = bytearray()
            async for piece in request.stream():
                raw += piece
                if len(raw) > self._max_body:
                    return self._too_long(f"your request has more than {self._max_body} bytes")
            body = orjson.loads(raw)
            check_request(body, self._template_arguments)
        except (orjson.JSONDecodeError, ClientDisconnect):
            return _refused("the body must be JSON with `messages`")
        except RequestRefused as refusal:
            return _refused(str(refusal), refusal.field)
        chars = text_size([body["messages"], body.get("tools")], self._max_chars)
        if chars > self._max_chars:
            return self._too_long(f"your prompt contains more than {self._max_chars} characters")
        try:
            if chars <= INLINE_CHARS:
                prompt_ids = self._prompt_ids(body)
            else:
                loop = asyncio.get_running_loop()
                prompt_ids = await loop.run_in_executor(self._tokenising, self._prompt_ids, body)
        except Exception as error:
            return _refused(f"the chat template refused the messages: {error}"[:MAX_MESSAGE_CHARS])
        if not prompt_ids:
            return _refused("the chat template made an empty prompt of the messages", "messages")
        asked = body.get("max_completion_tokens") or body.get("max_tokens")
        if len(prompt_ids) + (asked or 1) > self.max_length:  # as vLLM does
            return self._too_long(
                f"you requested {asked or 1} output tokens and your prompt contains "
                f"{len(prompt_ids)} input tokens"
            )
        limit = asked or self.response_length
        done = await self.sample(prompt_ids, limit, body)
        answer = self._answer(body, prompt_ids, done)
        if body.get("stream"):
            return StreamingResponse(_events(answer), media_type="text/event-stream")
        return _json(answer)

    def _prompt_ids(self, body: dict[str, Any]) -> list[int]:
        """Render the chat template and tokenise the prompt."""
        return prompt_ids(self.tokenizer, body)

    def _too_long(self, what: str) -> Response:
        """Refuse a prompt in the words of vLLM, by which callers know why."""
        message = (
            f"This model's maximum context length is {self.max_length} tokens. However, {what}."
        )
        return _refused(message, "messages", "context_length_exceeded")

    def _answer(
        self, body: dict[str, Any], prompt_ids: list[int], done: Generation
    ) -> dict[str, Any]:
        message, calls_tools = self._message(body, prompt_ids, done)
        choice: dict[str, object] = {
            "index": 0,
            "message": message,
            "finish_reason": "tool_calls" if calls_tools else done.finish_reason,
        }
        if body.get("logprobs"):
            entries = []
            for token, logprob in zip(done.token_ids, done.logprobs, strict=True):
                name = f"token_id:{token}"
                entries.append(
                    {"token": name, "logprob": logprob, "bytes": None, "top_logprobs": []}
                )
            choice["logprobs"] = {"content": entries}
        answer: dict[str, object] = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body.get("model") or self.model_name,
            "choices": [choice],
            "usage": {
                "prompt_tokens": len(prompt_ids),
                "completion_tokens": len(done.token_ids),
                "total_tokens": len(prompt_ids) + len(done.token_ids),
            },
        }
        if body.get("return_token_ids"):
            choice["token_ids"] = done.token_ids
            answer["prompt_token_ids"] = prompt_ids
        return answer

    def _message(
        self, body: dict[str, Any], prompt_ids: list[int], done: Generation
    ) -> tuple[dict[str, Any], bool]:
        """Return the reply, and whether it calls tools, which requires tools in the request."""
        if not body.get("tools") or body.get("tool_choice") == "none":
            text = self.tokenizer.decode(done.token_ids, skip_special_tokens=True)
            return {"role": "assistant", "content": text}, False
        shown = [token for token in done.token_ids if token not in self._hidden]
        text, calls = self._read(
            self.tokenizer.decode(shown), offered(body), [*prompt_ids, *done.token_ids]
        )
        message: dict[str, object] = {"role": "assistant", "content": text}
        if calls:
            message |= {"content": text or None, "tool_calls": calls}
        return message, bool(calls)

    def _read(
        self, text: str, names: tuple[str, ...], drawn: list[int]
    ) -> tuple[str, list[dict[str, Any]]]:
        """Return the words and the tool calls of a reply, by the policy's parser."""
        if self.parser != tool_calls.QWEN_CODER:
            return read_calls(text, drawn)
        words, written = tool_calls.read_calls(text, names)
        return words, numbered([(call.name, call.arguments) for call in written], drawn)


def _json(body: dict[str, Any], status: int = 200) -> Response:
    from starlette.responses import Response

    return Response(orjson.dumps(body), status, media_type="application/json")


def _refused(message: str, field: str | None = None, code: str | int = 400) -> Response:
    """Answer 400 in OpenAI's form, with the field as its `param`."""
    error = {
        "message": message,
        "type": "invalid_request_error",
        "param": field,
        "code": code,
    }
    return _json({"error": error}, 400)


async def _events(answer: dict[str, Any]) -> AsyncIterator[bytes]:
    """Yield the whole answer as one chunk of a stream: the engine has no partial text earlier."""
    choice = dict(answer["choices"][0])
    chunk = {**answer, "object": "chat.completion.chunk"}
    usage = chunk.pop("usage")
    delta = choice.pop("message")
    if "tool_calls" in delta:
        # In a stream each call has a number, as its text may come in several chunks.
        calls = [{"index": index, **call} for index, call in enumerate(delta["tool_calls"])]
        delta = {**delta, "tool_calls": calls}
    chunk["choices"] = [{**choice, "delta": delta}]
    yield b"data: " + orjson.dumps(chunk) + b"\n\n"
    yield b"data: " + orjson.dumps({**chunk, "choices": [], "usage": usage}) + b"\n\n"
    yield b"data: [DONE]\n\n"


def _set(finished: asyncio.Future[None]) -> None:
    if not finished.done():
        finished.set_result(None)


async def _serve(path: str, max_length: int, port: int, name: str, parser: str) -> None:
    key = os.environ.get(KEY, "")
    server = PolicyServer(
        path,
        slots=64,
        response_length=256,
        max_length=max_length,
        name=name,
        key=key,
        parser=parser,
    )
    try:
        address = await server.launch(port)
    except OSError as error:
        sys.exit(
            f"cannot listen on port {port}: {error.strerror}; name another, or none for a free one"
        )
    sys.stdout.write(address + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def main() -> None:
    """Serve a policy until the parent ends."""
    from harness.rollout.processes import die_with_parent
    from harness.util.http_server import raise_descriptors

    die_with_parent()
    raise_descriptors()
    defaults = ("2048", "0", "", "")
    path, length, port, name, parser = [*sys.argv[1:], *defaults[len(sys.argv) - 2 :]]
    asyncio.run(_serve(path, int(length), int(port), name, parser))


if __name__ == "__main__":
    main()
