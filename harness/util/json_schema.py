"""JSON schemas of tools from untrusted sources: checked when listed, applied within bounds.

`jsonschema` alone would match patterns with `re`, which cannot be interrupted, and fetch
references. Here patterns are matched by the linear-time engine of pydantic, references are never
fetched, and an application of a schema ends after a fixed number of steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import Any, NamedTuple

MAX_SCHEMA_CHARS = 1 << 17
"""Characters of a schema as JSON; an ordinary tool has fewer than 10,000."""
MAX_STEPS = 100_000
"""Keywords that one check may apply, with long texts and lists counted by their length: about 3 s
at most.
"""
CHARS_PER_STEP = 100
"""Characters that matching a pattern may read for one step."""

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_NAMED_SCHEMAS = (
    "properties",
    "patternProperties",
    "$defs",
    "definitions",
    "dependentSchemas",
    "dependencies",
)
"""Keywords with a mapping from names, which are no keywords, to schemas."""
_DATA = ("enum", "const", "default", "examples")
"""Keywords with values, in which a key such as `pattern` is no keyword."""
_UNBOUNDED_TOGETHER = ("patternProperties", "dependentSchemas")
"""Keywords that `jsonschema` evaluates for `unevaluated...` without the keywords that count steps
here.
"""

_steps: ContextVar[list[int]] = ContextVar("steps")


class SchemaFault(ValueError):
    """A schema that is not valid, not supported, or too costly to apply.

    The message is one line.
    """


class Mismatch(NamedTuple):
    """The first reason why a value does not fit a schema.

    Attributes:
        place: Path to the mismatch, keys and indexes joined by dots; empty for the whole value.
    """

    place: str
    message: str


def check_schema(schema: object) -> None:
    """Refuse a schema that cannot be applied safely; fetch nothing.

    Raises:
        SchemaFault: The schema is invalid, too large, refers to something outside of itself, or
            has a pattern that no linear-time engine matches; the message names the reference or the
            pattern.
    """
    _check_text(_text_of(schema))


def find_mismatch(instance: object, schema: Mapping[str, Any]) -> Mismatch | None:
    """Return the first reason why a value does not fit a schema, or None if it fits.

    Raises:
        SchemaFault: The schema cannot be applied, or not within `MAX_STEPS`.
    """
    from referencing.exceptions import Unresolvable

    validator = _validator(_text_of(schema))
    token = _steps.set([MAX_STEPS])
    try:
        error = next(validator.iter_errors(instance), None)
    except Unresolvable as missing:
        raise SchemaFault(
            f"refers to something that it does not define: {missing.ref!r}. References are never fetched"
        ) from None
    except RecursionError:
        raise SchemaFault("refers to itself without an end, or is nested too deeply") from None
    finally:
        _steps.reset(token)
    if error is None:
        return None
    return Mismatch(".".join(map(str, error.absolute_path)), error.message[:200])


def _text_of(schema: object) -> str:
    try:
        text = json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaFault(f"is not JSON: {' '.join(str(error).split())[:200]}") from None
    if len(text) > MAX_SCHEMA_CHARS:
        raise SchemaFault(
            f"has {len(text):,} characters, more than the {MAX_SCHEMA_CHARS:,} that are allowed"
        )
    return text


@lru_cache(1024)
def _check_text(text: str) -> None:
    from jsonschema import SchemaError
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    schema = json.loads(text)
    resource = DRAFT202012.create_resource(schema)
    # A registry that cannot fetch: a schema of others must not make this process send requests.
    resolver: Any = Registry().resolver_with_root(resource)
    try:
        _class_for(schema).check_schema(schema)
        for keyword, value in _keywords_in(schema):
            if keyword in _REFERENCES and isinstance(value, str) and not value.startswith("#"):
                resolver.lookup(value)
            elif keyword == "pattern" and isinstance(value, str):
                _compiled(value)
            elif keyword == "patternProperties" and isinstance(value, dict):
                for pattern in value:
                    _compiled(pattern)
    except SchemaError as error:
        raise SchemaFault(f"is not a valid JSON schema: {error.message[:200]}") from None
    except Unresolvable as missing:
        raise SchemaFault(
            f"refers to something outside of it: {missing.ref!r}. References are never fetched"
        ) from None
    except RecursionError:
        raise SchemaFault("is nested too deeply") from None
    if "unevaluated" in text:
        _check_unevaluated(schema)


def _check_unevaluated(schema: object) -> None:
    # `jsonschema` would evaluate these itself, without the steps that are counted here.
    keywords = {keyword for keyword, _ in _keywords_in(schema)}
    together = [name for name in _UNBOUNDED_TOGETHER if name in keywords]
    for keyword in ("unevaluatedProperties", "unevaluatedItems"):
        if keyword in keywords and together:
            raise SchemaFault(f"has {keyword} together with {together[0]}, which is not supported")


def _keywords_in(schema: object) -> Iterator[tuple[str, object]]:
    """Yield every keyword of a schema and of the schemas in it, with its value."""
    # A list of waiting schemas, since a schema may be nested deeper than Python recurses.
    waiting = [schema]
    while waiting:
        current = waiting.pop()
        if isinstance(current, list):
            waiting += current
        if not isinstance(current, dict):
            continue
        for keyword, value in current.items():
            yield keyword, value
            if keyword in _NAMED_SCHEMAS and isinstance(value, dict):
                waiting += value.values()
            elif keyword not in _DATA:
                waiting.append(value)


@lru_cache(4096)
def _compiled(pattern: str) -> Any:
    """Return a matcher for a pattern that takes time linear in the text.

    Raises:
        SchemaFault: The engine does not support the pattern, for example look-around or
            backreferences.
    """
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    # Python's `re` backtracks: a pattern of others could keep this process busy for years.
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError as error:
        reason = " ".join(str(error).split()).split("error: ")[-1].split("SchemaError: ")[-1]
        raise SchemaFault(
            f"has the pattern {pattern[:200]!r}, which cannot be matched in linear time ({reason[:200]})"
        ) from None


def _found(pattern: str, text: str) -> bool:
    """Return whether a pattern matches somewhere in a text."""
    from pydantic_core import ValidationError

    _spend(len(text) // CHARS_PER_STEP)
    try:
        _compiled(pattern).validate_python(text)
    except ValidationError:
        return False
    return True


def _spend(steps: int) -> None:
    """Count steps of the current check.

    Raises:
        SchemaFault: The check exceeds `MAX_STEPS`.
    """
    remaining = _steps.get(None)
    if remaining is None:
        return
    remaining[0] -= steps
    if remaining[0] < 0:
        raise SchemaFault(f"takes more than {MAX_STEPS:,} steps to check")


@lru_cache(1024)
def _validator(text: str) -> Any:
    from referencing import Registry

    _check_text(text)
    schema = json.loads(text)
    return _class_for(schema)(schema, registry=Registry())


def _class_for(schema: Any) -> Any:
    """Return the validator of the draft that a schema names, by default 2020-12."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    named = isinstance(schema, dict) and isinstance(schema.get("$schema"), str)
    draft = validator_for(schema, default=Draft202012Validator) if named else Draft202012Validator
    return _bounded(draft)


@cache
def _bounded(draft: Any) -> Any:
    """Return a draft's validator with linear-time patterns and counted steps."""
    from jsonschema.validators import extend

    keywords = {
        **draft.VALIDATORS,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "uniqueItems": _counted_pairs(draft.VALIDATORS["uniqueItems"]),
        "additionalProperties": _additional_properties(draft.VALIDATORS["additionalProperties"]),
    }
    return extend(draft, {name: _counted(keyword) for name, keyword in keywords.items()})


def _counted(keyword: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        entries = len(value) if isinstance(value, dict | list) else 0
        _spend(1 + entries // 10)
        yield from keyword(validator, value, instance, schema) or ()

    return check


def _counted_pairs(unique_items: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
    """Count the pairwise comparisons of items that cannot be sorted."""

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if value and isinstance(instance, list):
            ordered = all(isinstance(item, str) for item in instance)
            _spend(len(instance) if ordered else len(instance) ** 2 // 10)
        yield from unique_items(validator, value, instance, schema) or ()

    return check


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if validator.is_type(instance, "string") and not _found(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any
) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, subschema in patterns.items():
        _spend(len(instance) // 10)
        for name, value in instance.items():
            if _found(pattern, name):
                yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(additional: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
    """Leave out names that a pattern matches, which `jsonschema` would match with `re`."""

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        patterns = schema.get("patternProperties") or {}
        if patterns and validator.is_type(instance, "object"):
            _spend(len(instance) * len(patterns) // 10)
            unmatched = {}
            for name, property_value in instance.items():
                if not any(_found(pattern, name) for pattern in patterns):
                    unmatched[name] = property_value
            instance = unmatched
            schema = dict(schema)
            del schema["patternProperties"]
        yield from additional(validator, value, instance, schema) or ()

    return check
