"""Check requests of the policy server before they become prompts."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from harness.util.formatting import shortened

ALWAYS_ALLOWED = frozenset({"enable_thinking", "thinking", "reasoning_effort"})
"""Arguments that many chat templates have; a template that does not read them ignores them."""
MAX_ARGUMENT_CHARS = 200
"""Longest text of an argument of the chat template."""
LARGEST_SEED = 2**64 - 1


class RequestRefused(Exception):
    """A request that the server does not carry out.

    Attributes:
        field: Name of the field in the request's body.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


def check_request(body: Any, template_arguments: Collection[str]) -> None:
    """Check the types and ranges of the fields that the server reads.

    Args:
        body: The request's body, as parsed.
        template_arguments: Names that `chat_template_kwargs` may have.

    Raises:
        RequestRefused: Names the first field that is wrong, and its value.
    """
    if not isinstance(body, dict):
        raise RequestRefused("messages", "the body must be a JSON object with this field")
    _check_messages(body.get("messages"))
    for field, (fits, expected) in FIELDS.items():
        value = body.get(field)
        if value is not None and not fits(value):
            raise RequestRefused(field, f"must be {expected}, not {_shown(value)}")
    _check_template_arguments(body.get("chat_template_kwargs") or {}, template_arguments)


def text_size(value: Any, most: int) -> int:
    """Return the number of characters of all texts in a JSON value, each other value counting one.

    Counting ends soon after `most`.
    """
    size = 0
    left = [value]
    while left and size <= most:
        item = left.pop()
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, dict):
            size += sum(len(name) + 1 for name in item)
            left.extend(item.values())
        elif isinstance(item, list):
            size += 1
            left.extend(item)
        else:
            size += 1
    return size


def template_arguments(tokenizer: Any) -> frozenset[str]:
    """Return the names of arguments that a request may give to the tokenizer's chat template.

    These are the variables that the template reads, without those that the server sets and without
    the arguments of `apply_chat_template`, which include a template.
    """
    own = set(inspect.signature(tokenizer.apply_chat_template).parameters)
    own |= {"messages", *getattr(tokenizer, "special_tokens_map", {})}
    template = getattr(tokenizer, "chat_template", None)
    templates = template.values() if isinstance(template, Mapping) else [template]
    read: set[str] = set()
    for text in templates:
        read |= _variables(text) if isinstance(text, str) else set()
    return frozenset((read | ALWAYS_ALLOWED) - own)


def _variables(template: str) -> set[str]:
    """Return the variables that a Jinja template reads and does not set."""
    import jinja2
    import jinja2.meta

    environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
    try:
        return jinja2.meta.find_undeclared_variables(environment.parse(template))
    except jinja2.TemplateSyntaxError:  # tags of transformers' own
        return set()


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise RequestRefused("messages", f"must be a list of messages, not {_shown(messages)}")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            expected = "must be an object with the name of a role"
            raise RequestRefused(f"messages[{index}]", f"{expected}, not {_shown(message)}")


def _check_template_arguments(arguments: Mapping[str, Any], allowed: Collection[str]) -> None:
    for name, value in arguments.items():
        field = f"chat_template_kwargs.{name[:100]}"
        if name not in allowed:
            known = ", ".join(sorted(allowed))
            raise RequestRefused(
                field, f"not an argument that requests may give; these are: {known}"
            )
        short_text = isinstance(value, str) and len(value) <= MAX_ARGUMENT_CHARS
        if not (value is None or short_text or isinstance(value, bool) or _is_number(value)):
            expected = f"true, false, a number or a text of at most {MAX_ARGUMENT_CHARS} characters"
            raise RequestRefused(field, f"must be {expected}, not {_shown(value)}")


def _shown(value: Any) -> str:
    """Return a value as an error message shows it."""
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)} values"
    return shortened(repr(value), 60, kept=60)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_positive(value: Any) -> bool:
    return _is_integer(value) and value >= 1


def _is_temperature(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _is_share(value: Any) -> bool:
    return _is_number(value) and 0 < value <= 1


def _is_seed(value: Any) -> bool:
    return _is_integer(value) and -(2**63) <= value <= LARGEST_SEED


def _is_tool_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(tool, dict) for tool in value)


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool)


FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "model": (lambda value: isinstance(value, str), "a text"),
    "max_tokens": (_is_positive, "a whole number above 0"),
    "max_completion_tokens": (_is_positive, "a whole number above 0"),
    "temperature": (_is_temperature, "a number of at least 0"),
    "top_p": (_is_share, "a number above 0 and at most 1"),
    "seed": (_is_seed, "a whole number of 64 bits"),
    "n": (lambda value: _is_integer(value) and value == 1, "1: this server gives one choice"),
    "stream": (_is_boolean, "true or false"),
    "logprobs": (_is_boolean, "true or false"),
    "return_token_ids": (_is_boolean, "true or false"),
    "tools": (_is_tool_list, "a list of objects"),
    "tool_choice": (
        lambda value: value in ("auto", "none"),
        "auto or none: this server cannot make a policy call tools",
    ),
    "chat_template_kwargs": (lambda value: isinstance(value, dict), "an object"),
}
"""Fields that the server reads, each with its check and its description in error messages. A
missing field or null always fits."""
