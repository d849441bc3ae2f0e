"""Tool calls in the text of a reply: the form of Qwen2.5-Coder, and what looks like a call that no parser read.

Qwen2.5-Coder writes a call as JSON, `{"name": "look_up", "arguments": {"city": "Oslo"}}`: plain in the text, in a code
fence, or between `<tool_call>` or `<tools>` tags. Pure Python: policy servers and vLLM's plugin share this module.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.records import Transition

QWEN_CODER = "qwen2_5_coder"
"""Name of the parser of this module, beside vLLM's own `hermes` and `llama3_json`."""

UNUSED_SHARE = 0.01
"""Share of the rollouts that offered tools; where fewer hold a call, one or two are accidents."""

FAILED_STARTS = 64
"""Brackets of one reply that may begin no JSON before the rest is taken as text: bounds the time of parsing."""

_DECODER = json.JSONDecoder(strict=False)  # models leave line breaks in arguments unescaped
_OPENING = re.compile(r"[{\[]")
_LEAD = re.compile(r"(?:```[A-Za-z_]*|<tool_call>|<tools>)$")
"""What introduces a call and is no part of the words before it."""

_TOKEN_CHARS = 8
"""JSON that breaks so close to the end of a text may only be cut, as `tru` or an escape is."""

_LEAD_BEGUN = re.compile(r"(?:`{1,3}[A-Za-z_]*|<[a-z_]*>?)$")
"""The same at the end of a text that may go on."""
_LEAD_CHARS = 24
"""No introduction of a call is longer."""
_MARKS = ("<tool_call>", "<tools>", "<|python_tag|>", "[TOOL_CALLS]")
"""How calls begin in the forms of Hermes, Qwen2.5-Coder, Llama and Mistral."""


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """One tool call as a reply holds it.

    Attributes:
        arguments: A JSON object, as text.
    """

    name: str
    arguments: str


def tool_names(tools: object) -> tuple[str, ...]:
    """Return the names in a request's `tools`, in order; entries that are no functions have none."""
    names = []
    for tool in tools if isinstance(tools, list) else ():
        function = tool.get("function") if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str):
            names.append(name)
    return tuple(names)


def read_calls(text: str, names: Collection[str]) -> tuple[str, list[WrittenCall]]:
    """Return the words before a reply's first call, and its calls; all of the text where it has none.

    Only a JSON value that is itself a call, or a list of calls, counts: an answer in JSON that mentions a tool does not.

    Args:
        names: Names of the tools that the request offered.
    """
    words, calls, _ = read_partly(text, names, ended=True)
    return words, calls


def read_partly(
    text: str, names: Collection[str], *, ended: bool
) -> tuple[str, list[WrittenCall], int]:
    """Return what `read_calls` does, of a reply that may still grow.

    Args:
        names: Names of the tools that the request offered.
        ended: Whether the text is whole.

    Returns:
        The words before the first call, the calls that are complete, and how many characters of the words no further
        text can turn into a part of a call.
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
        found = [call for one in written if (call := _call(one, names)) is not None]
        if found and len(found) == len(written):
            calls += [WrittenCall(name, arguments) for name, arguments in found]
            if len(calls) == len(found):  # the first ones
                settled = start
    if calls:
        words = _LEAD.sub("", text[:settled].rstrip()).rstrip()
        return words, calls, len(words)
    if ended:
        return text, [], len(text)
    # Words may end with what introduces a call, or with its beginning: "``", "<tool".
    words = text[:settled].rstrip()
    begun = _LEAD_BEGUN.search(words, max(0, len(words) - _LEAD_CHARS))
    return text, [], len(words if begun is None else words[: begun.start()].rstrip())


def _is_cut(error: Exception, text: str) -> bool:
    """Return whether JSON failed at the end of a text that may go on, rather than by what is there."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated string") or len(text) - error.pos <= _TOKEN_CHARS


def _call(value: object, names: Collection[str]) -> tuple[str, str] | None:
    """Return name and arguments of a call of an offered tool; None where the value is none."""
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
    """Return whether a text holds what may be meant as a tool call, well formed or not.

    Args:
        names: Names of the tools that the request offered; JSON that names one of them looks like a call.
    """
    if any(mark in text for mark in _MARKS):
        return True
    if not names:
        return False
    any_name = "|".join(re.escape(name) for name in names)
    return re.search(rf"[\"']name[\"']\s*:\s*[\"'](?:{any_name})[\"']", text) is not None


def has_unread_call(transition: Transition) -> bool:
    """Return whether a reply's text holds what looks like a tool call that the server did not read as one."""
    return looks_like_call(transition.response_text, transition.offered_tools)


def tools_unused(offered_in: int, parsed_in: int) -> bool:
    """Return whether an agent's tools were as good as never called: its rollouts measure no use of tools.

    Args:
        offered_in: Rollouts that offered tools.
        parsed_in: Rollouts with a call that the server read.
    """
    return offered_in > 0 and parsed_in < UNUSED_SHARE * offered_in


def offered(request: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the tools that a request lets the policy call; none where it forbids calls."""
    return () if request.get("tool_choice") == "none" else tool_names(request.get("tools"))
