"""Reads chat completions, whole or streamed, into what a transition keeps. Never tokenizes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness.gateway.failures import Refusal, error_in
from harness.gateway.reply_forms import (
    Names,
    StreamedCalls,
    count_of,
    counts_of,
    end_reason,
    name_text,
    set_form,
    set_head,
    text_elsewhere,
)
from harness.gateway.tokens import ids_of, logprobs_of, shown


@dataclass(frozen=True, slots=True)
class Answer:
    """The fields of one completion. Token fields are None when the upstream reports no ids."""

    response_id: str
    text: str
    finish_reason: str | None
    prompt_ids: tuple[int, ...] | None
    response_ids: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None
    prompt_tokens: int | None
    response_tokens: int | None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    text_elsewhere: str = ""
    """Another field that holds text, for a reply with neither content nor tool calls."""
    served_model: str = ""
    """The model that the upstream names, which may differ from the requested one."""


NAMES = Names("", "", "")
"""Default names for an answer outside of a call."""


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
            Refusal: `duplicate_response_id`: the id was used before. A reused id would assign one
                rollout's reward to another rollout's tokens.
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


def check_no_error(answer: Mapping[str, Any], raw: bytes) -> None:
    """Check that an answer with status 200 reports no error.

    Raises:
        Refusal: It reports one, in the upstream's own words.
    """
    refusal = error_in(answer, raw)
    if refusal is not None:
        raise refusal


def aborted(completion: Mapping[str, object]) -> bool:
    """Return whether the upstream cut the answer off.

    vLLM does so with `finish_reason: abort` when its weights change.
    """
    choices = completion.get("choices")
    return isinstance(choices, list) and any(
        isinstance(choice, dict) and choice.get("finish_reason") == "abort" for choice in choices
    )


def read_answer(completion: dict[str, Any], *, token_ids: bool, names: Names = NAMES) -> Answer:
    """Read a whole completion and convert it to the form that agents receive.

    Args:
        completion: The upstream's answer; changed in place.
        token_ids: Whether the request needs exact token ids; only these need a response id.
        names: Names for fields that the upstream leaves out.

    Raises:
        Refusal: It is an error, no completion with one choice, has an invalid field, or its token
            ids are missing or do not match.
    """
    try:
        (choice,) = completion["choices"]
        message = choice["message"]
        # Read before `set_form`, which removes or replaces these fields.
        elsewhere = text_elsewhere(message)
        served_model = name_text(completion.get("model"))
        if token_ids and not name_text(completion.get("id")):
            raise ValueError("the answer has no id")
        usage = completion.get("usage")
        set_form(completion, names)
        message = choice["message"]
        text = _text(message, "content")
        calls = tuple(message.get("tool_calls", ()))
        answer = _answer(
            completion["id"],
            text,
            choice["finish_reason"],
            ids_of(completion, "prompt_token_ids") if token_ids else None,
            ids_of(choice, "token_ids") if token_ids else None,
            logprobs_of(choice) if token_ids else None,
            usage,
            token_ids=token_ids,
        )
        empty = not text.strip() and not calls
        return replace(
            answer,
            tool_calls=calls,
            text_elsewhere=elsewhere if empty else "",
            served_model=served_model,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _bad_answer(error) from error


class StreamedAnswer:
    """Gathers the chunks of one streamed completion into the same `Answer` that a whole one gives.

    Args:
        token_ids: Whether the request wants exact token ids.
        names: What the answer is given where the upstream names nothing.
    """

    def __init__(self, *, token_ids: bool, names: Names = NAMES) -> None:
        self.response_id: str | None = None
        self.finished = False
        self._token_ids = token_ids
        self._names = names
        self._text: list[str] = []
        self._finish_reason: str | None = None
        self._prompt_ids: list[int] | None = None
        self._response_ids: list[int] = []
        self._logprobs: list[float] = []
        self._usage: Any = None
        self._calls = StreamedCalls()
        self._shown_id = ""
        self._calls_shown = False
        self._elsewhere = ""
        self._served_model = ""

    def feed(self, chunk: Mapping[str, Any]) -> None:
        """Add one chunk.

        Raises:
            Refusal: The chunk is invalid, or the answer is complete and lacks token ids.
        """
        try:
            self.response_id = self.response_id or name_text(chunk.get("id")) or None
            self._served_model = self._served_model or name_text(chunk.get("model"))
            choices = chunk.get("choices") or ()
            # vLLM sends the ids of the prompt once, in its first chunk.
            if self._token_ids and self._prompt_ids is None:
                self._prompt_ids = ids_of(chunk, "prompt_token_ids")
                if self._prompt_ids is None and choices:
                    raise _no_token_ids("the first chunk has no prompt_token_ids")
            if chunk.get("usage"):
                self._usage = chunk["usage"]
            for choice in choices:
                self._add(choice)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _bad_answer(error) from error

    def _add(self, choice: Mapping[str, Any]) -> None:
        if (choice.get("index") or 0) != 0:
            raise ValueError("more than one choice")
        delta = choice.get("delta") or {}
        self._text.append(_text(delta, "content"))
        self._elsewhere = self._elsewhere or text_elsewhere(delta)
        for part in delta.get("tool_calls") or ():
            self._calls.add(part)
        if delta.get("function_call") and not self._names.functions:
            self._calls.add({"index": 0, "function": delta["function_call"]})
        if self._token_ids:
            self._response_ids.extend(ids_of(choice, "token_ids") or ())
            self._logprobs.extend(logprobs_of(choice) or ())
        reason = _text(choice, "finish_reason")
        if reason:
            self._finish_reason = end_reason(reason, calls=bool(self._calls))
        # Checked before the agent gets the last chunk: a faulty answer must not look complete.
        if self._finish_reason:
            if self._token_ids and self.response_id is None:
                raise ValueError("the answer has no id")
            self.answer()
            self.finished = True

    def answer(self) -> Answer:
        """Return the answer so far.

        It is complete once `finished` is true; only usage may follow.
        """
        text = "".join(self._text)
        answer = _answer(
            self.response_id or self._names.answer_id,
            text,
            self._finish_reason,
            self._prompt_ids if self._token_ids else None,
            self._response_ids if self._token_ids else None,
            self._logprobs if self._token_ids else None,
            self._usage,
            token_ids=self._token_ids,
        )
        calls = tuple(self._calls.whole(self._names))
        empty = not text.strip() and not calls
        return replace(
            answer,
            tool_calls=calls,
            text_elsewhere=self._elsewhere if empty else "",
            served_model=self._served_model,
        )

    def show(self, chunk: dict[str, Any]) -> bool:
        """Convert a chunk, after `feed`, to the form that agents receive, in place.

        Tool calls are passed on whole, with the reply's finish reason.

        Returns:
            Whether the chunk has anything for the agent.
        """
        choices = chunk.get("choices") or []
        chunk["choices"] = choices
        if not choices and not chunk.get("usage"):
            return False
        self._shown_id = self._shown_id or self.response_id or self._names.answer_id
        set_head(chunk, self._names, self._shown_id, "chat.completion.chunk")
        if chunk.get("usage"):
            chunk["usage"] = counts_of(chunk["usage"])
        has_content = bool(chunk.get("usage"))
        for choice in choices:
            has_content = self._show(choice) or has_content
        return has_content

    def _show(self, choice: dict[str, Any]) -> bool:
        delta = choice.get("delta") or {}
        shown: dict[str, Any] = {}
        if delta.get("role"):
            shown["role"] = "assistant"
        if isinstance(delta.get("content"), str):
            shown["content"] = delta["content"]
        if self._names.functions and delta.get("function_call"):
            shown["function_call"] = delta["function_call"]
        reason = choice.get("finish_reason")
        if reason:
            reason = end_reason(reason, calls=bool(self._calls))
            # Servers divide tool calls in different ways, and clients read only some of them.
            if self._calls and not self._calls_shown:
                self._calls_shown = True
                calls = self._calls.whole(self._names)
                shown["tool_calls"] = [
                    {"index": position, **call} for position, call in enumerate(calls)
                ]
        choice["index"], choice["delta"], choice["finish_reason"] = 0, shown, reason or None
        return bool(shown or reason or choice.get("logprobs") or choice.get("token_ids"))


def hide(chunk: dict[str, Any], *, token_ids: bool, logprobs: bool) -> None:
    """Remove from a completion or chunk the fields that only the gateway requested."""
    if token_ids:
        chunk.pop("prompt_token_ids", None)
    for choice in chunk["choices"]:
        if token_ids:
            choice.pop("token_ids", None)
        if logprobs and "logprobs" in choice:
            choice["logprobs"] = None


def _text(fields: Mapping[str, object], name: str) -> str:
    """Return a field with text or nothing. Lists of parts are refused: only requests have them."""
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text, not {shown(value)}")
    return value


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
            count_of(usage, "prompt_tokens"),
            count_of(usage, "completion_tokens"),
        )
    if prompt_ids is None or response_ids is None or (text and not response_ids):
        raise _no_token_ids("the answer has no token ids")
    if not prompt_ids:
        raise _bad_answer(ValueError("prompt_token_ids is empty"))
    if not response_ids:
        logprobs = logprobs or []  # a reply without tokens has no log-probabilities
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
