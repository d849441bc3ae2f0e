"""Modules in the place of inspect_ai and toml, of which the tools of tau2 need a few names."""

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
    """What a tool says no with."""


class StoreModel(BaseModel):
    """The state of one sample; here of one session."""

    instance: str | None = None


class Content(BaseModel):
    """A part of a message; no tool here gives any."""


class ContentText(Content):
    """A part that is text."""

    text: str


current: dict[type[StoreModel], StoreModel] = {}
"""By class, the state of the session whose call is being carried out."""


def store_as(model: type[_M], instance: str | None = None) -> _M:
    """The state of the session whose call is being carried out."""
    found = current[model]
    assert isinstance(found, model)
    return found


def tool(function: _F) -> _F:
    """Marks what makes a tool; the lists of the domains name those that there are."""
    return function


def install(folder: Path) -> None:
    """Let the wheel's modules be imported from a folder, without what its packages import themselves."""
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
