"""Descriptions of MCP servers: how to start or reach them, and the variables with their keys."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from harness.errors import ConfigError, EnvironmentFault

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHORTEST_KEY = 6
"""Shortest value that is hidden."""


class Server(BaseModel):
    """One server.

    Only this description travels: keys stay in environment variables, which it names.

    Attributes:
        command: The program of a server over stdio.
        args: Its arguments.
        env: Names of the variables that it gets, in addition to those that every program needs.
        url: Address of a server over streamable HTTP, instead of a command.
        headers: Headers of each request: by header, the name of the variable with its value.
        per_attempt: Whether each attempt has its own process, because calls change later results.
            Over HTTP each attempt has its own MCP session anyway.
        tools: Tools to offer; empty: all.
        state: URI of a resource to read at an attempt's end, for the reward.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    url: str = ""
    headers: Mapping[str, str] = {}
    per_attempt: bool = False
    tools: tuple[str, ...] = ()
    state: str = ""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("give either `command` or `url`")
        if self.url and (self.args or self.env or self.per_attempt):
            raise ValueError("`args`, `env` and `per_attempt` go with `command`, not with `url`")
        if self.command and self.headers:
            raise ValueError("`headers` go with `url`, not with `command`")
        if self.url:
            parts = urlsplit(self.url)
            if parts.scheme not in ("http", "https") or "@" in parts.netloc:
                raise ValueError(
                    "`url` is http or https, without user and password: a key goes into `headers`"
                )
        for name in self.variables:
            # The message must not repeat the text, which may be a key.
            if not _VARIABLE.fullmatch(name):
                raise ValueError(
                    "`env` and `headers` contain names of environment variables, never values"
                )
        if self.state and self.command and not self.per_attempt:
            raise ValueError("`state` needs `per_attempt: true`: otherwise all attempts share it")
        return self

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the names of all variables that it needs."""
        return (*self.env, *self.headers.values())

    @property
    def own(self) -> bool:
        """Return whether each attempt has its own connection."""
        return bool(self.url) or self.per_attempt

    def missing(self) -> list[str]:
        """Return the places that name unset variables."""
        places: list[str] = []
        for at, name in enumerate(self.env):
            if name not in os.environ:
                places.append(f"env[{at}]")
        for header, name in self.headers.items():
            if name not in os.environ:
                places.append(f"headers.{header}")
        return places

    def value_of(self, variable: str) -> str:
        """Return the value of a variable.

        Raises:
            EnvironmentFault: It is not set here.
        """
        if variable not in os.environ:
            raise EnvironmentFault(
                f"environment variable {variable} is not set where the agent runs"
            )
        return os.environ[variable]

    def hide(self, text: str) -> str:
        """Return a text without the values of its variables, because a server may print its key."""
        for name in self.variables:
            value = os.environ.get(name, "")
            for secret in (value, value.rpartition(" ")[2]):  # for `Bearer KEY` also the key alone
                if len(secret) >= _SHORTEST_KEY:
                    text = text.replace(secret, f"[{name}]")
        return text


def servers_of(given: Mapping[str, object], where: str) -> dict[str, Server]:
    """Return servers by name.

    Args:
        where: Begins the message, which repeats no value, since that might be a key.

    Raises:
        ConfigError: A description is invalid, or names a variable that is not set.
    """
    found = {}
    for name, one in given.items():
        try:
            found[name] = Server.model_validate(one)
        except ValidationError as error:
            first = error.errors(include_input=False)[0]
            place = ".".join(map(str, (where, name, *first["loc"])))
            raise ConfigError(
                f"{place}: {first['msg'].removeprefix('Value error, ')}. See docs/mcp.md"
            ) from None
        if missing := found[name].missing():
            raise ConfigError(
                f"{where}.{name}.{missing[0]} names an environment variable that is not set. "
                "Set it, or correct the name; "
                "a configuration never contains the key itself"
            )
    return found
