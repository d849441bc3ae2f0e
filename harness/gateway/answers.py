"""Reads chat completions, whole or streamed, into what a transition keeps. Never tokenizes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness.gateway.failures import Refusal

_ROUNDING = 1e-6
"""How far above 0 a log-probability may be: engines compute them in 32 bits or fewer."""
_COUNT_LIMIT = 2**31
"""Token ids and counts are below it; `transitions.parquet` keeps ids in 32 bits."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one completion says about itself. Token fields are None when the upstream reports no ids."""

    response_id: str
    text: str
    finish_reason: str | None
    prompt_ids: tuple[int, ...] | None
    response_ids: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None
    prompt_tokens: int | None
    response_tokens: int | None
    tool_calls: tuple[Mapping[str, Any], ...] = ()


NO_ARGUMENTS = "{}"
"""Arguments of a tool call that has none."""


class SeenIds:
    """Response ids met in this gateway's life: the last `capacity` of them."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        # Hashes take a third of the strings' memory, and two of these never collide in practice.
        self._seen: set[int] = set()
        self._order: deque[int] = deque()

    def claim(self, response_id: str) -> None:
        """Take an id.

        Raises:
            Refusal: `duplicate_response_id`: it was taken before. A reused id would put one rollout's
                reward on another rollout's tokens.
        """
        mark = hash(response_id)
        if mark in self._seen:
            raise Refusal(
                "duplicate_response_id",
                f"the upstream used the response id {response_id!r} before",
                upstream_status=200,
            )
        self._seen.add(mark)
        self._order.append(mark)
        if len(self._order) > self._capacity:
            self._seen.discard(self._order.popleft())


def aborted(completion: Mapping[str, object]) -> bool:
    """Whether the upstream cut the answer off, as vLLM does with `finish_reason: abort` when its weights change."""
    choices = completion.get("choices")
    return isinstance(choices, list) and any(
        isinstance(choice, dict) and choice.get("finish_reason") == "abort" for choice in choices
    )


def read_answer(completion: Mapping[str, Any], *, token_ids: bool) -> Answer:
    """Read a whole completion.

    Raises:
        Refusal: It is no completion with one choice, a field of it holds what it may not, or its token ids are
            missing or do not match.
    """
    try:
        (choice,) = completion["choices"]
        message = choice["message"]
        answer = _answer(
            completion["id"],
            _text(message, "content"),
            _text(choice, "finish_reason") or None,
            _ids(completion, "prompt_token_ids") if token_ids else None,
            _ids(choice, "token_ids") if token_ids else None,
            _logprobs(choice) if token_ids else None,
            completion.get("usage"),
            token_ids=token_ids,
        )
        return replace(answer, tool_calls=_tool_calls(message))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _bad_answer(error) from error


class StreamedAnswer:
    """Gathers the chunks of one streamed completion into the same `Answer` that a whole one gives."""

    def __init__(self, *, token_ids: bool) -> None:
        self.response_id: str | None = None
        self.finished = False
        self._token_ids = token_ids
        self._text: list[str] = []
        self._finish_reason: str | None = None
        self._prompt_ids: list[int] | None = None
        self._response_ids: list[int] = []
        self._logprobs: list[float] = []
        self._usage: Any = None
        self._tool_calls: dict[int, dict[str, Any]] = {}

    def feed(self, chunk: Mapping[str, Any]) -> None:
        """Add one chunk.

        Raises:
            Refusal: The chunk is none, or the answer is complete and lacks token ids.
        """
        if "error" in chunk:
            message = f"the upstream broke off with an error: {chunk['error']}"
            raise Refusal("bad_answer", message, upstream_status=200)
        try:
            if self.response_id is None:
                self.response_id = str(chunk["id"])
                if self._token_ids:
                    self._prompt_ids = _ids(chunk, "prompt_token_ids")
                    if self._prompt_ids is None:
                        raise _no_token_ids("the first chunk has no prompt_token_ids")
            if chunk.get("usage"):
                self._usage = chunk["usage"]
            for choice in chunk["choices"]:
                if choice.get("index", 0) != 0:
                    raise ValueError("more than one choice")
                delta = choice.get("delta") or {}
                self._text.append(_text(delta, "content"))
                for part in _tool_calls(delta):
                    self._add_tool_call(part)
                if self._token_ids:
                    self._response_ids.extend(_ids(choice, "token_ids") or ())
                    self._logprobs.extend(_logprobs(choice) or ())
                self._finish_reason = _text(choice, "finish_reason") or self._finish_reason
                if self._finish_reason:
                    self.answer()
                    self.finished = True
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _bad_answer(error) from error

    def answer(self) -> Answer:
        """The answer so far. Complete once `finished` is true; only the usage may follow."""
        answer = _answer(
            self.response_id or "",
            "".join(self._text),
            self._finish_reason,
            self._prompt_ids if self._token_ids else None,
            self._response_ids if self._token_ids else None,
            self._logprobs if self._token_ids else None,
            self._usage,
            token_ids=self._token_ids,
        )
        calls = [self._tool_calls[at] for at in sorted(self._tool_calls)]
        return replace(answer, tool_calls=tuple(calls))

    def fill_arguments(self, chunk: Mapping[str, Any]) -> bool:
        """Add `{}` to the last chunk for each tool call that came without arguments.

        Returns:
            Whether the chunk was changed.
        """
        changed = False
        for choice in chunk.get("choices") or ():
            if not choice.get("finish_reason"):
                continue
            for index, call in sorted(self._tool_calls.items()):
                function = call.get("function")
                if function is None or function["arguments"]:
                    continue
                function["arguments"] = NO_ARGUMENTS
                delta = choice.get("delta") or {}
                part = {"index": index, "function": {"arguments": NO_ARGUMENTS}}
                delta["tool_calls"] = [*(delta.get("tool_calls") or ()), part]
                choice["delta"] = delta
                changed = True
        return changed

    def _add_tool_call(self, part: Mapping[str, Any]) -> None:
        """Add a part of a tool call: its name comes first, its arguments come in pieces."""
        index = part.get("index", 0)
        known = self._tool_calls.setdefault(index if isinstance(index, int) else 0, {})
        function = part.get("function")
        for name in ("id", "type"):
            if part.get(name):
                known[name] = part[name]
        if isinstance(function, Mapping):
            whole = known.setdefault("function", {"name": "", "arguments": ""})
            for name in ("name", "arguments"):
                whole[name] += _text(function, name)


def fill_arguments(completion: Mapping[str, Any]) -> bool:
    """Replace empty arguments of tool calls by `{}`.

    Servers write a call without arguments in both ways, and frameworks send an empty text back as it is or as `{}`, so
    that the same reply would lead to different requests.

    Returns:
        Whether the completion was changed.
    """
    changed = False
    for choice in completion["choices"]:
        for call in _tool_calls(choice["message"]):
            function = call.get("function")
            if isinstance(function, dict) and function.get("arguments") == "":
                function["arguments"] = NO_ARGUMENTS
                changed = True
    return changed


def hide(chunk: dict[str, Any], *, token_ids: bool, logprobs: bool) -> None:
    """Take out of a completion or chunk what the gateway asked for and the agent did not."""
    if token_ids:
        chunk.pop("prompt_token_ids", None)
    for choice in chunk["choices"]:
        if token_ids:
            choice.pop("token_ids", None)
        if logprobs and "logprobs" in choice:
            choice["logprobs"] = None


def split_events(buffer: bytearray) -> Iterator[bytes]:
    """Take the complete server-sent events out of a buffer, each with its closing empty line."""
    while True:
        ends = [
            (at, len(mark)) for mark in (b"\n\n", b"\r\n\r\n") if (at := buffer.find(mark)) >= 0
        ]
        if not ends:
            return
        at, width = min(ends)
        event = bytes(buffer[: at + width])
        del buffer[: at + width]
        yield event


def event_data(event: bytes) -> bytes | None:
    """The data of a server-sent event, or None for a comment."""
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def _text(fields: Mapping[str, object], name: str) -> str:
    """A field that holds text or nothing. A list of parts is for requests: agents are not made to read one."""
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text, not {_shown(value)}")
    return value


def _tool_calls(message: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Tool calls of a message or of a part of one; what is no list of objects is left out."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return ()
    return tuple(call for call in calls if isinstance(call, dict))


def _ids(fields: Mapping[str, object], name: str) -> list[int] | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list, not {_shown(value)}")
    # Thousands a call, so looked at one by one only where something is wrong.
    if value and (set(map(type, value)) != {int} or min(value) < 0 or max(value) >= _COUNT_LIMIT):
        wrong = next(one for one in value if not _is_count(one))
        raise ValueError(
            f"{name} must hold whole numbers from 0 to {_COUNT_LIMIT - 1}, not {_shown(wrong)}"
        )
    return value


def _logprobs(choice: Mapping[str, Any]) -> list[float] | None:
    content = (choice.get("logprobs") or {}).get("content")
    return None if content is None else [_logprob(item["logprob"]) for item in content]


def _logprob(value: object) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not -math.inf < value <= _ROUNDING
    ):
        raise ValueError(
            f"a log-probability must be a finite number of 0 or less, not {_shown(value)}"
        )
    return float(value)


def _count(usage: object, name: str) -> int | None:
    """A count of the upstream's own: only informative, so one that is none is left out rather than refused."""
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if _is_count(value) else None


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _COUNT_LIMIT  # `isinstance` would take True for 1


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _answer(
    response_id: str,
    text: str,
    finish_reason: str | None,
    prompt_ids: list[int] | None,
    response_ids: list[int] | None,
    logprobs: list[float] | None,
    usage: object,
    *,
    token_ids: bool,
) -> Answer:
    if not token_ids:
        return Answer(
            str(response_id),
            text,
            finish_reason,
            None,
            None,
            None,
            _count(usage, "prompt_tokens"),
            _count(usage, "completion_tokens"),
        )
    if prompt_ids is None or response_ids is None or (text and not response_ids):
        raise _no_token_ids("the answer has no token ids")
    if not prompt_ids:
        raise _bad_answer(ValueError("prompt_token_ids is empty"))
    if logprobs is None or (response_ids and not logprobs):
        raise _no_token_ids("the answer has no log-probabilities")
    if len(logprobs) != len(response_ids):
        raise Refusal(
            "token_count_mismatch",
            f"the answer has {len(response_ids)} token ids and {len(logprobs)} log-probabilities",
            upstream_status=200,
        )
    return Answer(
        str(response_id),
        text,
        finish_reason,
        tuple(prompt_ids),
        tuple(response_ids),
        tuple(logprobs),
        len(prompt_ids),
        len(response_ids),
    )


def _no_token_ids(message: str) -> Refusal:
    return Refusal("no_token_ids", message, upstream_status=200)


def _bad_answer(error: Exception) -> Refusal:
    return Refusal(
        "bad_answer",
        f"the answer is not a chat completion with one choice ({type(error).__name__}: {error})",
        upstream_status=200,
    )
