"""What `harness plugins new` writes: a package that passes the contract suite as it stands.

`templates/KIND` is the package, each file with `.txt` behind its name; in names and texts `@NAME@` is the plugin's,
`@DASHED@` the same with dashes, `@CLASS@` its class.
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
"""A command for what was written, once it is installed."""
MAX_NAME = 60


def write_package(name: str, folder: Path, kind: str = "agent") -> Path:
    """Write the package `name` below `folder` and return its folder.

    Args:
        kind: One of `KINDS`.

    Raises:
        ConfigError: The kind is unknown, the name cannot be a package's or is taken, or the folder exists.
    """
    from harness.plugins import registry

    if kind not in KINDS:
        raise ConfigError(
            f"--kind {kind!r} is none of {', '.join(KINDS)}. docs/ has pages on programs and trainers"
        )
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        raise ConfigError(
            f"plugin name {name!r}: use lower-case letters, digits and single underscores, as in my_sql"
        )
    if len(name) > MAX_NAME:
        raise ConfigError(
            f"plugin name {name[:20]!r}...: {len(name)} characters; use {MAX_NAME} at most"
        )
    texts = {
        file: file.read_text(encoding="utf-8") for file in sorted((TEMPLATES / kind).rglob("*.txt"))
    }
    class_name = "".join(part.capitalize() for part in name.split("_"))
    modules = "\n".join(text for file, text in texts.items() if file.name.endswith(".py.txt"))
    if keyword.iskeyword(class_name) or re.search(rf"\b{class_name}\b", modules):
        raise ConfigError(
            f"plugin name {name!r}: its class would be {class_name}, which means something else there; choose another"
        )
    if find_spec(f"harness_{name}") or any(
        spec.name == name for spec in registry().specs(KINDS[kind])
    ):
        raise ConfigError(
            f"plugin name {name!r} is taken by an installed {KINDS[kind]} or package; choose another"
        )
    target = folder / name
    if target.exists():
        raise ConfigError(f"{target} exists already; choose another name or --dir")
    for file, text in texts.items():
        place = target / file.relative_to(TEMPLATES / kind).with_suffix("").as_posix().replace(
            "@NAME@", name
        )
        place.parent.mkdir(parents=True, exist_ok=True)
        for word, value in {
            "@NAME@": name,
            "@DASHED@": name.replace("_", "-"),
            "@CLASS@": class_name,
        }.items():
            text = text.replace(word, value)
        place.write_text(text, encoding="utf-8")
        if place.name == "__init__.py":
            (place.parent / "py.typed").touch()
    return target
