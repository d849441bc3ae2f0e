"""Record types at run time: columns, keys, and validation of data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from harness.runs.schema import Identity, Key

if TYPE_CHECKING:
    from pydantic import TypeAdapter

COSTS_ONLY = (
    "actor_rollout_ref.model.enable_gradient_checkpointing",
    "actor_rollout_ref.actor.checkpoint.async_save",
    "actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend",
)
"""Options of verl that change time and memory only. Comparisons ignore them, except between
deterministic trainings, which promise the same bits."""
_UNIONS = (Union, UnionType)
_ARROW: dict[Any, str] = {
    int: "int64",
    float: "double",
    str: "string",
    bool: "bool",
    list[str]: "list<string>",
    Sequence[int]: "list<int32>",
    Sequence[float]: "list<float>",
}


@cache
def columns(part: type) -> dict[str, str]:
    """Return name and Arrow type of every column of a table with rows of this type."""
    types = {}
    for name, (kind, _, _) in described(part).items():
        # `X | None` is a column of X: any column may be empty.
        types[name] = _ARROW[get_args(kind)[0] if get_origin(kind) in _UNIONS else kind]
    return types


@cache
def keys() -> dict[str, Key]:
    """Return every key of the identity, for comparisons, `runs diff` and reports."""
    keys_by_name: dict[str, Key] = {}
    for name, (_, _, further) in described(Identity).items():
        keys_by_name[name] = further[1]
    return keys_by_name


def fault(data: Mapping[str, Any], part: type) -> str | None:
    """Return the dotted name of the first field that is missing or has a wrong type, else None."""
    from pydantic import ValidationError  # here, since listing runs must not wait for its import

    try:
        _adapter(part).validate_python(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        return _dotted(data, first["loc"])
    return None


@cache
def _adapter(part: type) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(part)


def _dotted(data: Any, location: Sequence[int | str]) -> str:
    """Return the dotted name of a field from pydantic's location of an error.

    A location also names members of unions, which are no part of the data.
    """
    names: list[str] = []
    for place, part in enumerate(location):
        inside = (isinstance(data, Mapping) and part in data) or (
            isinstance(data, list) and isinstance(part, int) and part < len(data)
        )
        if inside:
            data = data[part]
            names.append(str(part))
        elif isinstance(data, Mapping) and place == len(location) - 1:
            names.append(str(part))  # a field that is missing
    return ".".join(names)


@cache
def described(part: type) -> dict[str, tuple[Any, bool, tuple[Any, ...]]]:
    """Return each field's type, whether it is required, and its further annotations."""
    fields = {}
    for name, hint in get_type_hints(part, include_extras=True).items():
        # NotRequired is outside of Annotated, so it is unwrapped first.
        needed = get_origin(hint) is not NotRequired
        kind = hint if needed else get_args(hint)[0]
        parts = get_args(kind) if get_origin(kind) is Annotated else (kind,)
        fields[name] = (parts[0], needed, parts[1:])
    return fields
