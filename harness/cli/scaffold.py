"""Write the package of `harness plugins new`, which passes the contract suite unchanged.

`templates/KIND` holds the package, with `.txt` added to each file name. In names and texts `@NAME@`
is the plugin's name, `@DASHED@` the same with dashes, and `@CLASS@` its class.
"""

from __future__ import annotations

import keyword
import re
from importlib.util import find_spec
from pathlib import Path

from harness.errors import ConfigError

TEMPLATES = Path(__file__).with_name("templates")
KINDS = {"agent": "agent", "task": "task set", "reward": "reward", "environment": "environment"}
"""What `--kind` takes: the kind as the registry names it."""
USE = {
    "agent": "harness parity @NAME@",
    "task": "harness eval --task @NAME@ --set task.options.folder=FOLDER --endpoint URL --model NAME",
    "reward": "harness train --set reward.name=@NAME@",
    "environment": "harness plugins",
}
"""A command that uses the new part, once it is installed."""
USE_FILE = ("harness parity @FILE@:@CLASS@", "harness train --agent @FILE@:@CLASS@ --steps 2")
"""Commands for an agent in one file."""
MAX_NAME = 60


def write_package(name: str, folder: Path, kind: str = "agent") -> Path:
    """Write the package `name` below `folder` and return its folder.

    Args:
        kind: One of `KINDS`.

    Raises:
        ConfigError: The kind is unknown, the name is invalid or taken, or the folder exists.
    """
    if kind not in KINDS:
        raise ConfigError(
            f"--kind {kind!r} is none of {', '.join(KINDS)}. "
            "docs/ has pages on programs and trainers"
        )
    class_name = _class_name(name, kind, KINDS[kind])
    target = folder / name
    if target.exists():
        raise ConfigError(f"{target} exists already; choose another name or --dir")
    for file, text in _texts(kind).items():
        place = target / file.relative_to(TEMPLATES / kind).with_suffix("").as_posix().replace(
            "@NAME@", name
        )
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(_filled(text, name, class_name), encoding="utf-8")
        if place.name == "__init__.py":
            (place.parent / "py.typed").touch()
    return target


def write_file(name: str, folder: Path) -> Path:
    """Write the agent `name` as one file into `folder` and return it; `USE_FILE` names its class.

    Raises:
        ConfigError: The name cannot be a module's, or the file exists.
    """
    class_name = _class_name(name, "one_file", "agent")
    target = folder / f"{name}.py"
    if target.exists():
        raise ConfigError(f"{target} exists already; choose another name or --dir")
    folder.mkdir(parents=True, exist_ok=True)
    (text,) = _texts("one_file").values()
    target.write_text(_filled(text, name, class_name), encoding="utf-8")
    return target


def class_of(name: str) -> str:
    """Return the class name for a plugin's name: `MySql` for `my_sql`."""
    return "".join(part.capitalize() for part in name.split("_"))


def _texts(template: str) -> dict[Path, str]:
    """Return the texts of a template by file."""
    files = sorted((TEMPLATES / template).rglob("*.txt"))
    return {file: file.read_text(encoding="utf-8") for file in files}


def _filled(text: str, name: str, class_name: str) -> str:
    """Return a template's text with the names in their places."""
    names = {"@NAME@": name, "@DASHED@": name.replace("_", "-"), "@CLASS@": class_name}
    for word, value in names.items():
        text = text.replace(word, value)
    return text


def _class_name(name: str, template: str, kind: str) -> str:
    """Return the class of a new part.

    Raises:
        ConfigError: The name does not fit, or is taken by an installed part or package.
    """
    from harness.plugins import registry

    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        raise ConfigError(
            f"plugin name {name!r}: use lower-case letters, "
            "digits and single underscores, as in my_sql"
        )
    if len(name) > MAX_NAME:
        raise ConfigError(
            f"plugin name {name[:20]!r}...: {len(name)} characters; use {MAX_NAME} at most"
        )
    texts = _texts(template)
    class_name = class_of(name)
    # A class with the name of something that the template imports would hide it.
    modules = "\n".join(text for file, text in texts.items() if file.name.endswith(".py.txt"))
    if keyword.iskeyword(class_name) or re.search(rf"\b{class_name}\b", modules):
        raise ConfigError(
            f"plugin name {name!r}: its class would be {class_name}, "
            "which means something else there; choose another"
        )
    if find_spec(f"harness_{name}") or any(spec.name == name for spec in registry().specs(kind)):
        raise ConfigError(
            f"plugin name {name!r} is taken by an installed {kind} or package; choose another"
        )
    return class_name
