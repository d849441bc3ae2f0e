"""Replacements for inspect_ai and toml, with the few names that the tools of tau2 need."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from pydantic import BaseModel

PACKAGE = "inspect_evals.tau2"
_F = TypeVar("_F", bound=Callable[..., object])
_M = TypeVar("_M", bound="StoreModel")


class ToolError(Exception):
    """A tool's refusal."""


class StoreModel(BaseModel):
    """The state of one sample; here of one session."""

    instance: str | None = None


class Content(BaseModel):
    """A part of a message; no tool here returns any."""


class ContentText(Content):
    """A part that is text."""

    text: str


current: dict[type[StoreModel], StoreModel] = {}
"""State of the session with the current call, by class."""


def store_as(model: type[_M], instance: str | None = None) -> _M:
    """Return the state of the session with the current call."""
    found = current[model]
    assert isinstance(found, model)
    return found


def tool(function: _F) -> _F:
    """Mark a factory of a tool; the lists of the domains name the existing ones."""
    return function


def install(folder: Path) -> None:
    """Make the wheel's modules importable from a folder, without the imports of its packages."""
    modules: dict[str, dict[str, object]] = {
        "inspect_ai": {"__path__": []},
        "inspect_ai.tool": {"Tool": object, "ToolError": ToolError, "tool": tool},
        "inspect_ai.util": {"StoreModel": StoreModel, "store_as": store_as},
        "inspect_ai.model": {"Content": Content, "ContentText": ContentText},
        "toml": {},
    }
    parts = PACKAGE.split(".")
    for depth in range(1, len(parts) + 1):
        modules[".".join(parts[:depth])] = {"__path__": [str(folder.joinpath(*parts[:depth]))]}
    for name, names in modules.items():
        module = ModuleType(name)
        vars(module).update(names)
        sys.modules[name] = module
