"""Convert answers of real servers to one form, so that every agent receives the same reply.

Servers omit, rename or add fields, and agent frameworks treat these differently. Agents receive the
form that `docs/gateway.md` describes; an answer that does not fit it is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

NO_ARGUMENTS = "{}"
"""Arguments of a tool call without arguments."""
ELSEWHERE = ("reasoning_content", "reasoning", "thinking", "refusal")
"""Fields of a message in which servers put text outside of the reply's content."""

_MADE_CALL_CHARS = 9
"""Length of tool call ids that the gateway makes: Mistral chat templates refuse any other."""
_STOPPED = frozenset({"", "eos", "eos_token", "end_turn", "stop_sequence", "complete", "completed"})
_CUT = frozenset({"max_tokens", "max_length", "max_new_tokens", "max_output_tokens", "token_limit"})
_CALLED = frozenset({"stop", "tool_use", "tool_call", "function_call"})
"""Reasons that servers give for the end of a reply with tool calls."""
_COUNT_LIMIT = 2**31


@dataclass(frozen=True, slots=True)
class Names:
    """Default names for one answer, for fields that its server omits.

    Attributes:
        call: Source of tool call ids: the same in every run and framework.
        answer: Source of the answer's id: unique.
        model: The model of the request.
        functions: Whether the request offered `functions`, so that the agent reads a
            `function_call`.
    """

    call: str
    answer: str
    model: str
    functions: bool = False

    @property
    def answer_id(self) -> str:
        """Return an id for the answer."""
        return f"chatcmpl-{hashlib.sha256(self.answer.encode()).hexdigest()[:24]}"

    def call_id(self, position: int) -> str:
        """Return an id for the tool call at a position of the reply."""
        digest = hashlib.sha256(f"{self.call}/{position}".encode()).hexdigest()
        return digest[:_MADE_CALL_CHARS]


def name_text(value: object) -> str:
    """Return an id or a name as text; empty if it is neither text nor a number."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return ""


def end_reason(reason: object, *, calls: bool) -> str:
    """Return why a reply ended: `stop`, `length`, `tool_calls`, or another reason of the server.

    Args:
        calls: Whether the reply holds tool calls.

    Raises:
        ValueError: The reason is no text.
    """
    if reason is not None and not isinstance(reason, str):
        raise ValueError(f"finish_reason must be text, not {reason!r:.60}")
    name = (reason or "").lower()
    if name in _CUT:
        return "length"
    if name in _STOPPED:
        name = "stop"
    if calls and name in _CALLED:
        return "tool_calls"
    return name if name != "tool_calls" or calls else "stop"


def arguments_of(value: object) -> str:
    """Return a tool call's arguments as JSON text; `{}` if there are none.

    A text that holds an object's JSON as a JSON text is unwrapped; any other text stays as it is.
    """
    if value is None or value == [] or value == {}:
        return NO_ARGUMENTS
    if not isinstance(value, str):
        return orjson.dumps(value).decode()
    if not value.strip():
        return NO_ARGUMENTS
    # Unwrap only objects. Any other text stays as the model wrote it, for the record.
    if value.lstrip().startswith('"'):
        inner = _json(value)
        if isinstance(inner, str) and isinstance(_json(inner), dict):
            return inner
    return value


def _json(text: str) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def tool_calls_of(message: Mapping[str, Any], names: Names) -> list[dict[str, Any]]:
    """Return the tool calls of a whole message in OpenAI's form.

    Each has an id, a type, a name and arguments as text.

    Raises:
        ValueError: A tool call has no usable form.
    """
    written = message.get("tool_calls")
    # Some servers answer with the older form to a request in the newer one.
    if not written and not names.functions and message.get("function_call"):
        written = [{"function": message["function_call"]}]
    if not written:
        return []
    if isinstance(written, dict):
        written = [written]
    if not isinstance(written, list):
        raise ValueError(f"tool_calls must be a list, not {written!r:.60}")
    return [_tool_call(call, position, names) for position, call in enumerate(written)]


def _tool_call(call: object, position: int, names: Names) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise ValueError(f"tool call {position} must be an object, not {call!r:.60}")
    if call.get("type") not in (None, "", "function"):
        raise ValueError(f"tool call {position} has the type {call['type']!r:.60}, not 'function'")
    function = call.get("function")
    if function is None and "name" in call:
        function = call  # some servers omit the level of `function`
    if not isinstance(function, dict):
        raise ValueError(f"tool call {position} has no function")
    name = function.get("name")
    if name is not None and not isinstance(name, str):
        raise ValueError(f"tool call {position} has a name that is no text: {name!r:.60}")
    arguments = function.get("arguments", function.get("parameters"))
    return {
        "id": name_text(call.get("id")) or names.call_id(position),
        "type": "function",
        "function": {"name": name or "", "arguments": arguments_of(arguments)},
    }


def text_elsewhere(message: Mapping[str, Any]) -> str:
    """Return the name of the field other than `content` that holds text; empty if there is none."""
    for name in ELSEWHERE:
        value = message.get(name)
        if isinstance(value, str) and value.strip():
            return name
    return ""


def counts_of(usage: object) -> dict[str, int]:
    """Return the token counts for the agent: whole numbers, 0 if the server gives none."""
    counts = usage if isinstance(usage, dict) else {}
    prompt = count_of(counts, "prompt_tokens") or 0
    completion = count_of(counts, "completion_tokens") or 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def count_of(usage: object, name: str) -> int | None:
    """Return a count of the server, or None if it is invalid: counts are only informative."""
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if type(value) is int and 0 <= value < _COUNT_LIMIT else None


def set_head(completion: dict[str, Any], names: Names, answer_id: str, kind: str) -> None:
    """Set the fields of a completion or a chunk that its choices do not hold."""
    completion["id"] = answer_id
    completion["object"] = kind
    if not isinstance(completion.get("created"), int):
        completion["created"] = 0
    completion["model"] = name_text(completion.get("model")) or names.model


def set_form(completion: dict[str, Any], names: Names) -> None:
    """Convert a whole completion with one choice to the form that agents receive.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: It is none.
    """
    (choice,) = completion["choices"]
    message = choice["message"]
    content = message.get("content")
    calls = tool_calls_of(message, names)
    shown: dict[str, Any] = {"role": "assistant", "content": "" if content is None else content}
    if calls:
        shown["tool_calls"] = calls
    if names.functions and message.get("function_call"):
        shown["function_call"] = message["function_call"]
    choice["index"] = 0
    choice["message"] = shown
    choice["finish_reason"] = end_reason(choice.get("finish_reason"), calls=bool(calls))
    set_head(
        completion, names, name_text(completion.get("id")) or names.answer_id, "chat.completion"
    )
    completion["usage"] = counts_of(completion.get("usage"))


class StreamedCalls:
    """Collect a streamed reply's tool calls, which come whole or in pieces, numbered or not."""

    def __init__(self) -> None:
        self._calls: list[dict[str, Any]] = []
        self._at: dict[int, int] = {}
        """Position in the reply by the server's own number."""

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, part: object) -> None:
        """Add a part of a call.

        Raises:
            ValueError: It is none.
        """
        if not isinstance(part, dict):
            raise ValueError(f"a part of a tool call must be an object, not {part!r:.60}")
        function = part.get("function") or (part if "name" in part else {})
        if not isinstance(function, dict):
            raise ValueError(f"a tool call's function must be an object, not {function!r:.60}")
        call = self._call_of(part, function)
        if part.get("type"):
            call["type"] = part["type"]
        if not call["id"]:
            call["id"] = name_text(part.get("id"))
        self._add_function(call["function"], function)

    def whole(self, names: Names) -> list[dict[str, Any]]:
        """Return the calls so far in OpenAI's form.

        Raises:
            ValueError: One of them is none.
        """
        return [_tool_call(call, position, names) for position, call in enumerate(self._calls)]

    def _call_of(self, part: Mapping[str, Any], function: Mapping[str, Any]) -> dict[str, Any]:
        """Return the call of a part, by its number. Another id with a name begins another call."""
        number = part.get("index")
        call_id = name_text(part.get("id"))
        if isinstance(number, int):
            position = self._at.get(number)
        else:
            position = len(self._calls) - 1 if self._calls else None
        if position is not None:
            known = self._calls[position]
            begins = bool(function.get("name")) and bool(call_id) and call_id != known["id"]
            unnumbered = not isinstance(number, int) and bool(function.get("name")) and not call_id
            if not begins and not unnumbered:
                return known
        if isinstance(number, int):
            self._at[number] = len(self._calls)
        self._calls.append({"id": call_id, "type": None, "function": {"name": "", "arguments": ""}})
        return self._calls[-1]

    def _add_function(self, whole: dict[str, Any], part: Mapping[str, Any]) -> None:
        name, arguments = part.get("name"), part.get("arguments", part.get("parameters"))
        if name is not None and not isinstance(name, str):
            raise ValueError(f"a tool call's name must be text, not {name!r:.60}")
        if name and name != whole["name"]:  # some servers send the name with every part
            whole["name"] += name
        if isinstance(arguments, str) and isinstance(whole["arguments"], str):
            whole["arguments"] += arguments
        elif arguments is not None:
            whole["arguments"] = arguments
