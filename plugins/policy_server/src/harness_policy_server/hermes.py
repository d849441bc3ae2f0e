"""Tool calls in the Hermes form: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"

_CALL = re.compile(f"{OPEN}(.*?)(?:{CLOSE}|$)", re.DOTALL)


def read_calls(text: str, drawn: Sequence[int]) -> tuple[str, list[dict[str, Any]]]:
    """Return the text of a reply and its tool calls; with a malformed call, all of it is text.

    Args:
        drawn: Token ids of prompt and reply. The calls' ids are made from them: unique in a
            conversation, the same in every run.
    """
    written_calls: list[tuple[str, str]] = []
    for written in _CALL.findall(text):
        try:
            call = json.loads(written)
            name, arguments = call["name"], call["arguments"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return text, []
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return text, []
        written_calls.append((name, json.dumps(arguments, ensure_ascii=False)))
    if not written_calls:
        return text, []
    return text[: text.index(OPEN)], numbered(written_calls, drawn)


def numbered(calls: Sequence[tuple[str, str]], drawn: Sequence[int]) -> list[dict[str, Any]]:
    """Return calls, given by name and arguments, as a chat completion has them.

    Args:
        drawn: As of `read_calls`.
    """
    # From the sampled tokens, so that a repeated request has the same ids, and others have others.
    mark = hashlib.sha256(repr(list(drawn)).encode()).hexdigest()[:16]
    made = []
    for index, (name, arguments) in enumerate(calls):
        function = {"name": name, "arguments": arguments}
        made.append({"id": f"call_{mark}_{index}", "type": "function", "function": function})
    return made


def for_template(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages for chat templates: tool calls with objects, not text, as arguments."""
    converted = []
    for message in messages:
        copy = dict(message)
        if message.get("tool_calls"):
            copy["tool_calls"] = [_parsed(call) for call in message["tool_calls"]]
        converted.append(copy)
    return converted


def _parsed(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    with suppress(ValueError, RecursionError):  # text that is not JSON stays as it is
        function["arguments"] = json.loads(function["arguments"])
    return {**call, "function": function}
