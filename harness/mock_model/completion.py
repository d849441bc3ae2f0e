"""Wire format of scripted replies: whole or in chunks, with token ids and log-probabilities."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

END = 256
"""Token id that ends a reply; the ids below it are bytes."""
Part = dict[str, Any]
"""A chat completion as JSON."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One scripted answer, or a fault.

    Attributes:
        text: The reply.
        finish_reason: `stop`, or `length` for a truncated reply.
        tool_calls: The message's tool calls, if any.
        delay_s: Time before the answer begins.
        chunk_delay_s: Time between the chunks of a streamed answer.
        status: HTTP status; any other than 200 answers an error.
        headers: Further headers of the answer.
        hang: Never answer.
        drop: Break the connection before the answer, or in the middle of it.
        response_id: The completion's id; a new one if None.
        without: Fields that the answer omits: `token_ids`, `prompt_token_ids`, `logprobs`, or
            `one_logprob`.
        raw: Answer exactly these bytes instead of a completion.
    """

    text: str = ""
    finish_reason: str = "stop"
    tool_calls: Sequence[Mapping[str, Any]] | None = None
    delay_s: float = 0.0
    chunk_delay_s: float = 0.0
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    hang: bool = False
    drop: Literal["", "before", "midway"] = ""
    response_id: str | None = None
    without: frozenset[str] = frozenset()
    raw: bytes | None = None

    @classmethod
    def failure(cls, status: int, message: str = "scripted failure", **headers: str) -> Reply:
        """An HTTP error, for example 429 with `retry_after="2"`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return cls(text=message, status=status, headers=named)


class ScriptedCompletion:
    """One answer in the wire format, whole or as chunks."""

    def __init__(self, model: str, body: Mapping[str, Any], reply: Reply, token_ids: bool) -> None:
        self._reply = reply
        self._body = body
        self._head = {
            "id": reply.response_id or f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }
        self._with_ids = (
            token_ids and bool(body.get("return_token_ids")) and "token_ids" not in reply.without
        )
        self._with_logprobs = bool(body.get("logprobs")) and "logprobs" not in reply.without
        self._prompt_ids = prompt_token_ids(body["messages"])

    def whole(self) -> Part:
        """Return the answer to a request without `stream`."""
        reply = self._reply
        ids = response_token_ids(reply.text, reply.finish_reason)
        message: Part = {"role": "assistant", "content": reply.text}
        if reply.tool_calls is not None:
            message["tool_calls"] = reply.tool_calls
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": reply.finish_reason,
        } | self._tokens(ids, 0)
        whole = {
            **self._head,
            "object": "chat.completion",
            "choices": [choice],
            "usage": self._usage(ids),
        }
        return self._with_prompt(whole)

    def chunks(self) -> Iterator[Part]:
        """Yield the parts of a streamed answer: role, words, end, and the usage if requested."""
        reply = self._reply
        role = {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        yield self._with_prompt(self._chunk([role]))
        at = 0
        for word in reply.text.split(" ") if reply.text else ():
            piece = word if at == 0 else " " + word
            ids = list(piece.encode())
            choice = {"index": 0, "delta": {"content": piece}, "finish_reason": None}
            yield self._chunk([choice | self._tokens(ids, at)])
            at += len(ids)
        calls = reply.tool_calls
        delta = (
            {}
            if calls is None
            else {"tool_calls": [{"index": at, **call} for at, call in enumerate(calls)]}
        )
        ids = [END] if reply.finish_reason == "stop" else []
        yield self._chunk(
            [
                {"index": 0, "delta": delta, "finish_reason": reply.finish_reason}
                | self._tokens(ids, at)
            ]
        )
        if (self._body.get("stream_options") or {}).get("include_usage"):
            usage = self._usage(response_token_ids(reply.text, reply.finish_reason))
            yield self._chunk([]) | {"usage": usage}

    def _chunk(self, choices: list[Part]) -> Part:
        return {**self._head, "object": "chat.completion.chunk", "choices": choices}

    def _with_prompt(self, value: Part) -> Part:
        if self._with_ids and "prompt_token_ids" not in self._reply.without:
            value["prompt_token_ids"] = self._prompt_ids
        return value

    def _tokens(self, ids: Sequence[int], at: int) -> Part:
        fields: Part = {"logprobs": None}
        if self._with_ids:
            fields["token_ids"] = ids
        if self._with_logprobs:
            content = list(_logprob_content(tuple(ids), at))
            if "one_logprob" in self._reply.without and content:
                content.pop()
            fields["logprobs"] = {"content": content}
        return fields

    def _usage(self, ids: Sequence[int]) -> dict[str, int]:
        prompt = len(self._prompt_ids)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": len(ids),
            "total_tokens": prompt + len(ids),
        }


def prompt_token_ids(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the token ids of a prompt: the bytes of its messages, each with an `END`."""
    ids: list[int] = []
    for message in messages:
        ids += [*f"{message.get('role')}\n{message.get('content') or ''}".encode(), END]
    return ids


def response_token_ids(text: str, finish_reason: str = "stop") -> list[int]:
    """Return the token ids of a reply: its bytes, and `END` unless it was truncated."""
    return [*text.encode(), END] if finish_reason == "stop" else list(text.encode())


def logprob(token_id: int, position: int) -> float:
    """Return the log-probability of a token at a position of the reply."""
    return -((token_id * 31 + position) % 97 + 1) / 100


@lru_cache(maxsize=1024)
def _logprob_content(ids: tuple[int, ...], at: int) -> tuple[Part, ...]:
    return tuple(
        {
            "token": f"token_id:{token_id}",
            "logprob": logprob(token_id, position),
            "bytes": [token_id] if token_id < END else [],
            "top_logprobs": [],
        }
        for position, token_id in enumerate(ids, at)
    )
