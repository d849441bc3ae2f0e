"""Tool calls in the text of a reply: the form of Qwen2.5-Coder, and text that resembles a call.

Qwen2.5-Coder writes a call as JSON, `{"name": "look_up", "arguments": {"city": "Oslo"}}`: plain in
the text, in a code fence, or between `<tool_call>` or `<tools>` tags. Pure Python: policy servers
and vLLM's plugin share this module.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.records import Transition

QWEN_CODER = "qwen2_5_coder"
"""Name of this module's parser; vLLM's own are `hermes` and `llama3_json`."""

UNUSED_SHARE = 0.01
"""Share of the rollouts that offered tools; a lower share of rollouts with a call counts as
accidental.
"""

FAILED_STARTS = 64
"""Most brackets of one reply that may begin no JSON before the rest is taken as text; bounds the
parsing time.
"""

_DECODER = json.JSONDecoder(strict=False)  # models leave line breaks in arguments unescaped
_OPENING = re.compile(r"[{\[]")
_LEAD = re.compile(r"(?:```[A-Za-z_]*|<tool_call>|<tools>)$")
"""The marker before a call, which is no part of the preceding words."""

_TOKEN_CHARS = 8
"""JSON that fails within so many characters of the end may only be incomplete, such as `tru` or an
escape.
"""

_LEAD_BEGUN = re.compile(r"(?:`{1,3}[A-Za-z_]*|<[a-z_]*>?)$")
"""The start of such a marker at the end of a growing text."""
_LEAD_CHARS = 24
"""Longest marker before a call."""
_MARKS = ("<tool_call>", "<tools>", "<|python_tag|>", "[TOOL_CALLS]")
"""Markers of calls in the forms of Hermes, Qwen2.5-Coder, Llama and Mistral."""


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """One tool call in the text of a reply.

    Attributes:
        arguments: A JSON object, as text.
    """

    name: str
    arguments: str


def tool_names(tools: object) -> tuple[str, ...]:
    """Return the names in a request's `tools`, in order, without entries that are no functions."""
    names = []
    for tool in tools if isinstance(tools, list) else ():
        function = tool.get("function") if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str):
            names.append(name)
    return tuple(names)


def read_calls(text: str, names: Collection[str]) -> tuple[str, list[WrittenCall]]:
    """Return the words before a reply's first call, and its calls; without calls, the whole text.

    Only a JSON value that is itself a call, or a list of calls, counts: an answer in JSON that
    mentions a tool does not.

    Args:
        names: Names of the tools that the request offered.
    """
    words, calls, _ = read_partly(text, names, ended=True)
    return words, calls


def read_partly(
    text: str, names: Collection[str], *, ended: bool
) -> tuple[str, list[WrittenCall], int]:
    """Return the result of `read_calls` for a reply that may still grow.

    Args:
        names: Names of the tools that the request offered.
        ended: Whether the text is complete.

    Returns:
        The words before the first call, the complete calls, and the number of leading characters
        that no further text can turn into part of a call.
    """
    calls: list[WrittenCall] = []
    position = failed = 0
    settled = len(text)
    while failed < FAILED_STARTS and (opening := _OPENING.search(text, position)):
        start = opening.start()
        try:
            value, position = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            if not ended and _is_cut(error, text):
                settled = start
                break
            failed += 1
            position = start + 1
            continue
        written = value if isinstance(value, list) else [value]
        read = [_call(item, names) for item in written]
        # All of a list are calls, or none: other lists of objects are part of the answer.
        complete = [call for call in read if call is not None]
        if complete and len(complete) == len(written):
            calls += [WrittenCall(name, arguments) for name, arguments in complete]
            if len(calls) == len(complete):  # the first ones
                settled = start
    if calls:
        words = _LEAD.sub("", text[:settled].rstrip()).rstrip()
        return words, calls, len(words)
    if ended:
        return text, [], len(text)
    # Words may end with a marker of a call, or with its beginning: "``", "<tool".
    words = text[:settled].rstrip()
    begun = _LEAD_BEGUN.search(words, max(0, len(words) - _LEAD_CHARS))
    return text, [], len(words if begun is None else words[: begun.start()].rstrip())


def _is_cut(error: Exception, text: str) -> bool:
    """Return whether JSON failed only because a growing text ends there."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated string") or len(text) - error.pos <= _TOKEN_CHARS


def _call(value: object, names: Collection[str]) -> tuple[str, str] | None:
    """Return name and arguments of a call of an offered tool, or None for any other value."""
    if not isinstance(value, dict) or value.keys() != {"name", "arguments"}:
        return None
    name, arguments = value["name"], value["arguments"]
    if not isinstance(name, str) or name not in names:
        return None
    if isinstance(arguments, str):
        try:
            arguments = _DECODER.decode(arguments)
        except (ValueError, RecursionError):
            return None
    if not isinstance(arguments, dict):
        return None
    return name, json.dumps(arguments, ensure_ascii=False)


def looks_like_call(text: str, names: Sequence[str] = ()) -> bool:
    """Return whether a text contains a possible tool call, well formed or not.

    Args:
        names: Names of the tools that the request offered; JSON that names one of them looks like a
            call.
    """
    if any(mark in text for mark in _MARKS):
        return True
    if not names:
        return False
    any_name = "|".join(re.escape(name) for name in names)
    return re.search(rf"[\"']name[\"']\s*:\s*[\"'](?:{any_name})[\"']", text) is not None


def has_unread_call(transition: Transition) -> bool:
    """Return whether a reply's text resembles a tool call that the server did not parse."""
    return looks_like_call(transition.response_text, transition.offered_tools)


def tools_unused(offered_in: int, parsed_in: int) -> bool:
    """Return whether so few rollouts called tools that they do not measure the use of tools.

    Args:
        offered_in: Rollouts that offered tools.
        parsed_in: Rollouts with a call that the server parsed.
    """
    return offered_in > 0 and parsed_in < UNUSED_SHARE * offered_in


def offered(request: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the tools that a request lets the policy call, if any."""
    return () if request.get("tool_choice") == "none" else tool_names(request.get("tools"))
