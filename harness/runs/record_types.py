"""Record types at run time: columns, keys, and validation of data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints

from typing_extensions import is_typeddict

from harness.runs.schema import Identity, Key

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
    for name, (_, _, annotations) in described(Identity).items():
        keys_by_name[name] = annotations[1]
    return keys_by_name


def fault(data: Any, part: type) -> str | None:
    """Return the dotted name of the first field that is missing or has a wrong type, else None."""
    for name, (kind, needed, _) in described(part).items():
        if name not in data:
            if needed:
                return name
        elif not _fits(data[name], kind):
            return next(_within(name, data[name], kind), name)
    return None


def _within(name: str, value: object, kind: Any) -> Iterator[str]:
    """Yield the names of invalid fields inside a field that holds one or several records."""
    if get_origin(kind) is list and isinstance(value, list):
        for position, item in enumerate(value):
            yield from _within(f"{name}.{position}", item, get_args(kind)[0])
    elif is_typeddict(kind) and isinstance(value, dict) and (below := fault(value, kind)):
        yield f"{name}.{below}"


def _fits(value: Any, kind: Any) -> bool:
    if is_typeddict(kind):
        return isinstance(value, dict) and fault(value, kind) is None
    outer, inner = get_origin(kind), get_args(kind)
    if kind is Any or outer is Literal:
        return kind is Any or value in inner
    if outer in _UNIONS:
        return any(_fits(value, member) for member in inner)
    if outer is list:
        return isinstance(value, list) and all(_fits(item, inner[0]) for item in value)
    # JSON writes 1.0 as 1 in some languages, so an integer is a valid float.
    return isinstance(value, (int, float) if kind is float else outer or kind)


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
