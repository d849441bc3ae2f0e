"""Layers of nested settings: bounded parsing, dotted keys, and merging."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Collection, Mapping
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from harness.errors import ConfigError
from harness.util.formatting import shown

if TYPE_CHECKING:
    from yaml import Node, SafeDumper, SafeLoader, ScalarNode

VALUES = 100_000
"""Most values of one YAML document. Each alias counts with all values that it expands to."""
LEVELS = 100
"""Most levels of nesting, in YAML and JSON."""
DIGITS = 100
"""Most digits of an integer in YAML. Python prints no integer of more than 4,300 digits."""
_TOO_DEEP = f"it is nested more than {LEVELS} levels deep"
_EXPONENT_TAG = "!exponent"
_TEXT_TAG = "tag:yaml.org,2002:str"
_EXPONENT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$")
"""A number such as `1e-4`, which YAML 1.1 reads as text because it has no point or no sign."""
_OCTAL = re.compile(r"[-+]?0[0-7_]+")
_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")


class WrittenFloat(float):
    """A number that `str` shows as it was written, such as `1e-6`, for names made of it."""

    text: str

    def __new__(cls, value: float, text: str = "") -> Self:
        """Create a number; without a text, it shows as any other."""
        number = super().__new__(cls, value)
        number.text = text or repr(float(value))
        return number

    def __str__(self) -> str:
        return self.text


def parse_yaml(text: str | bytes, *, as_written: bool = False) -> Any:
    """Parse YAML into plain data. Aliases expand to a bounded number of values.

    Unlike in YAML 1.1, `1e-4` is a number, and numbers in base 8 or 60 are refused.

    Args:
        as_written: Return numbers such as `1e-4` as `WrittenFloat`.

    Raises:
        ValueError: The text is no YAML, contains itself, or exceeds the bounds. The message is one
            line.
    """
    from yaml import MarkedYAMLError
    from yaml.reader import ReaderError

    try:
        text = text.decode() if isinstance(text, bytes) else text
        loader = _loader(as_written)(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _measured(node, 1, {})  # before construction, which would expand merged aliases
        return loader.construct_document(node)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line}: not UTF-8 ({error.reason})") from error
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        began = f" {error.context}" if error.context else ""
        if began and error.context_mark and error.context_mark.line + 1 != line:
            began += f" that begins in line {error.context_mark.line + 1}"
        raise ValueError(" ".join(f"line {line}: {error.problem}{began}".split())) from error
    except ReaderError as error:
        line = str(text).count("\n", 0, error.position) + 1
        raise ValueError(
            f"line {line}: the character {chr(int(error.character))!r} is not allowed"
        ) from error


def parse_json(text: str | bytes) -> Any:
    """Return plain data from JSON. Numbers are finite: NaN, Infinity and `1e999` become None.

    Raises:
        ValueError: It is no JSON, or nested beyond the bound.
    """
    try:
        data = json.loads(text, parse_float=_finite_float, parse_constant=lambda _: None)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    # Level by level, because a recursion would fail on values that json could still read.
    values = [data]
    for _ in range(LEVELS + 1):
        containers = [value for value in values if isinstance(value, dict | list)]
        if not containers:
            return data
        values = []
        for container in containers:
            values += container.values() if isinstance(container, dict) else container
    raise ValueError(_TOO_DEEP)


_Cell = TypeVar("_Cell", dict[str, Any], list[Any])


def parse_cell(text: object, empty: _Cell) -> _Cell:
    """Return the value of a table's JSON cell, or `empty` if it is null or invalid JSON."""
    try:
        found = parse_json(text) if isinstance(text, str) else empty
    except ValueError:
        return empty
    return found if isinstance(found, type(empty)) else empty


def finite_or_null(value: object) -> float | None:
    """Return a figure as a finite float; None if it is no number, infinite, NaN or too large."""
    if not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _finite_float(text: str) -> float | None:
    return finite_or_null(float(text))


def dump_yaml(data: object) -> str:
    """Return plain data as YAML that `parse_yaml` reads as the same data; keys keep their order."""
    import yaml

    return yaml.dump(data, Dumper=_dumper(), sort_keys=False, allow_unicode=True)


@cache
def _dumper() -> type[SafeDumper]:
    """Return a writer of YAML that puts text which looks like `1e-4` in quotes."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    Dumper.add_implicit_resolver(_EXPONENT_TAG, _EXPONENT, list("-+.0123456789"))
    return Dumper


@cache
def _loader(as_written: bool) -> type[SafeLoader]:
    """Return a YAML loader of plain data that names the line of an invalid value."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_object(self, node: Node, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep)
            except ValueError as error:
                if not isinstance(node, yaml.ScalarNode):
                    raise
                raise ValueError(f"line {node.start_mark.line + 1}: {error}") from error

    def construct_exponent(loader: Loader, node: ScalarNode) -> float:
        value = float(node.value)
        return WrittenFloat(value, node.value) if as_written else value

    # Resolvers do not apply to quoted values, which remain text.
    Loader.add_implicit_resolver(_EXPONENT_TAG, _EXPONENT, list("-+.0123456789"))
    Loader.add_constructor(_EXPONENT_TAG, construct_exponent)
    return Loader


def _measured(node: Node, depth: int, known: dict[Node, int]) -> int:
    """Count the values of a document below a node.

    A 0 in `known` marks a node that is still being counted.
    """
    if (counted := known.get(node)) is not None:
        if not counted:
            raise ValueError(
                f"an alias in line {node.start_mark.line + 1} refers to a value that contains the alias"
            )
        return counted
    if depth > LEVELS:
        raise ValueError(_TOO_DEEP)
    known[node] = 0
    parts: list[Any] = []
    if isinstance(node.value, list):  # pairs of a mapping, or nodes of a sequence
        _keep_keys_as_text(node)
        _refuse_repeated_keys(node)
        for item in node.value:
            parts += item if isinstance(item, tuple) else (item,)
    elif node.tag.endswith((":int", ":float")):
        _refuse_odd_number(node)
    known[node] = size = 1 + sum(_measured(part, depth + 1, known) for part in parts)
    if size > VALUES:
        raise ValueError(f"with its aliases written out it has more than {VALUES:,} values")
    return size


def _keep_keys_as_text(node: Node) -> None:
    """Read the keys of a mapping such as `1e-4` as text, as YAML 1.1 does: they are names."""
    for item in node.value:
        if isinstance(item, tuple) and item[0].tag == _EXPONENT_TAG:
            item[0].tag = _TEXT_TAG


def _refuse_odd_number(node: Node) -> None:
    """Refuse a number with too many digits, and one that YAML 1.1 reads in base 8 or 60."""
    line, text = node.start_mark.line + 1, node.value
    # Converting a long number takes time that grows with the square of its digits.
    if node.tag.endswith(":int") and len(text) > DIGITS:
        raise ValueError(f"the number in line {line} has {len(text)} digits")
    if _OCTAL.fullmatch(text) and int(text, 8) == int(text.replace("_", "")):
        return  # 07 is 7 in base 10, too
    for pattern, base in ((_OCTAL, 8), (_BASE_60, 60)):
        if pattern.fullmatch(text):
            raise ValueError(
                f"line {line}: YAML reads {shown(text)} as a number in base {base}; "
                "write it in base 10, or put it in quotes to have text"
            )


def _refuse_repeated_keys(node: Node) -> None:
    """Refuse a mapping with a repeated key: YAML would drop the first value."""
    seen: set[tuple[str, str]] = set()
    for item in node.value:
        key = item[0] if isinstance(item, tuple) else None
        if key is None or not isinstance(key.value, str) or key.tag.endswith(":merge"):
            continue
        if (key.tag, key.value) in seen:
            raise ValueError(f"line {key.start_mark.line + 1}: the key {key.value!r} is repeated")
        seen.add((key.tag, key.value))


def merge(into: dict[str, Any], layer: Mapping[str, object]) -> dict[str, Any]:
    """Merge `layer` into `into`, mapping by mapping, and return `into`.

    Other values are replaced whole.
    """
    for key, value in layer.items():
        if isinstance(value, Mapping):
            below = into.get(key)
            into[key] = merge(below if isinstance(below, dict) else {}, value)
        else:
            into[key] = value
    return into


def nested(options: Mapping[str, object]) -> dict[str, Any]:
    """Convert dotted keys to nested mappings; later keys win.

    Raises:
        ConfigError: A key has more parts than the allowed levels.
    """
    result: dict[str, Any] = {}
    for key, value in options.items():
        if (parts := str(key).count(".") + 1) > LEVELS:
            raise ConfigError(f"the key {str(key)[:40]!r}... has {parts:,} parts; {LEVELS} at most")
        layer: Any = nested(value) if isinstance(value, Mapping) else value
        for part in reversed(str(key).split(".")):
            layer = {part: layer}
        merge(result, layer)
    return result


def without_dates(value: object) -> Any:
    """Convert dates, which YAML reads as such, to text."""
    if isinstance(value, Mapping):
        return {key: without_dates(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_dates(item) for item in value]
    return value.isoformat() if isinstance(value, date) else value


def at(settings: Mapping[str, object], path: str, default: object = None) -> Any:
    """Return the value under a dotted path, or `default` if there is none."""
    found: object = settings
    for part in path.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return default
        found = found[part]
    return found


def flatten(data: Mapping[str, object], prefix: str = "") -> dict[str, Any]:
    """Convert nested mappings to one level with dotted keys.

    Lists and empty mappings are values.
    """
    flat: dict[str, object] = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = {} if isinstance(value, Mapping) else value
    return flat


def differing(settings: Collection[Mapping[str, object]]) -> list[str]:
    """Return the keys of flat settings with different values among `settings`."""
    keys: dict[str, None] = {}
    for flat in settings:
        keys |= dict.fromkeys(flat)
    different = []
    for key in keys:
        # As text, since lists cannot be in a set.
        values = {str(flat.get(key)) for flat in settings}
        if len(values) > 1:
            different.append(key)
    return different


def digest(data: Mapping[str, object]) -> str:
    """Return a hash of JSON data that does not depend on the order of keys. 16 hex digits."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def has_hash(file: Path, known: str) -> bool:
    """Return whether a file is readable and has the known hash."""
    try:
        return file_hash(file) == known
    except OSError:
        return False


def read_regular(file: str | Path) -> bytes:
    """Return the content of a regular file. A pipe or a device, which may never end, is refused.

    Raises:
        OSError: It cannot be read, or is no regular file.
    """
    _check_regular(file)
    return Path(file).read_bytes()


def _check_regular(file: str | Path) -> None:
    mode = os.stat(file).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, not a file", str(file))


def file_hash(file: str | Path) -> str:
    """Return the SHA-256 of a file's content as hexadecimal digits. Always reads the file.

    Raises:
        OSError: It cannot be read, or is no regular file.
    """
    _check_regular(file)
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
