"""Hashes of the code that decides what an agent does."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Iterable
from pathlib import Path

from harness.contracts.hookspecs import AgentSpec
from harness.plugins import one_file


def source_hash(module: str) -> str:
    """Hash all files of the module's top package, including prompts in YAML.

    Inside `harness` the module only.
    """
    files = _package_files(module)
    return "missing" if files is None else _hash(files)


def agent_hash(spec: AgentSpec) -> str:
    """Return the hash of an agent's code: its package, or its file and what that needs.

    A file needs its imports of its own folder, and the files there that its code names.
    """
    if not one_file.is_file(spec.target):
        return source_hash(_module(spec))
    # Named files follow, so that the hash of an agent that names none is that of its code alone.
    code = one_file.sources(spec.target)
    return _hash([*code, *one_file.named_files(spec.target, code)])


def modules_hash(spec: AgentSpec) -> str:
    """Return the hash of an agent's Python files alone: it may write others while it runs."""
    if one_file.is_file(spec.target):
        files = one_file.sources(spec.target)
    else:
        files = _package_files(_module(spec)) or []
    return _hash((name, file) for name, file in files if file.suffix == ".py")


def _module(spec: AgentSpec) -> str:
    return spec.target.partition(":")[0]


def _package_files(module: str) -> list[tuple[str, Path]] | None:
    """Return the files of a module's top package by name; None if there is no such package."""
    package = module.partition(".")[0]
    spec = importlib.util.find_spec(module if package == "harness" else package)
    if spec is None:
        return None
    folders = []
    if package != "harness":
        folders = [Path(location) for location in spec.submodule_search_locations or ()]
    files: list[tuple[str, Path]] = []
    for folder in folders:
        # Sorted, because the order of entries differs between machines.
        for file in sorted(folder.rglob("*")):
            if _is_source(file):
                files.append((str(file.relative_to(folder)), file))
    if not folders and spec.origin is not None:
        files = [(Path(spec.origin).name, Path(spec.origin))]
    return files


def _hash(files: Iterable[tuple[str, Path]]) -> str:
    hashed = hashlib.sha256()
    for name, file in files:
        # Names count too: a module under another name is imported otherwise.
        hashed.update(os.fsencode(name) + b"\0" + file.read_bytes() + b"\0")
    return hashed.hexdigest()[:16]


def _is_source(file: Path) -> bool:
    made = (
        "__pycache__" in file.parts
        or file.name in ("py.typed", ".DS_Store")
        or file.name.endswith("~")
    )
    return not made and file.is_file()
