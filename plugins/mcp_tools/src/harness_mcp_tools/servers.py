"""What is said of an MCP server: how it is started or reached, and by which variables it gets its keys."""

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
"""Characters of a value that is worth hiding."""


class Server(BaseModel):
    """One server, of which this is all that travels: keys stand in environment variables, and only their names here.

    Attributes:
        command: The program of a server over stdio.
        args: Its arguments.
        env: Names of the variables that it gets, beside those without which no program runs.
        url: Of a server over streamable HTTP, in place of a command.
        headers: What is sent with each request: the name of the variable that holds a header's value, by header.
        per_attempt: Whether each attempt has a process of its own, since calls change what later ones find. Over HTTP
            each attempt has an MCP session of its own anyway.
        tools: Those that are offered; empty: all.
        state: URI of a resource that is read at an attempt's end, for the reward.
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
        if self.url and (
            urlsplit(self.url).scheme not in ("http", "https") or "@" in urlsplit(self.url).netloc
        ):
            raise ValueError(
                "`url` is http or https, without user and password: a key goes into `headers`"
            )
        if not all(_VARIABLE.fullmatch(name) for name in self.variables):
            raise ValueError(
                "`env` and `headers` have names of environment variables, never the values"
            )
        if self.state and self.command and not self.per_attempt:
            raise ValueError(
                "`state` needs `per_attempt: true`: else it is that of all attempts together"
            )
        return self

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of all variables that it needs."""
        return (*self.env, *self.headers.values())

    @property
    def own(self) -> bool:
        """Whether each attempt has a connection of its own."""
        return bool(self.url) or self.per_attempt

    def missing(self) -> list[str]:
        """Where variables are named that are not set here."""
        places = {f"env[{at}]": name for at, name in enumerate(self.env)}
        places |= {f"headers.{header}": name for header, name in self.headers.items()}
        return [place for place, name in places.items() if name not in os.environ]

    def value_of(self, variable: str) -> str:
        """What a variable holds.

        Raises:
            EnvironmentFault: It is not set here.
        """
        if variable not in os.environ:
            raise EnvironmentFault(
                f"environment variable {variable} is not set where the agent runs"
            )
        return os.environ[variable]

    def hide(self, text: str) -> str:
        """A text without the values of its variables: a server may say its key."""
        for name in self.variables:
            value = os.environ.get(name, "")
            for secret in (value, value.rpartition(" ")[2]):  # of `Bearer KEY` also the key alone
                if len(secret) >= _SHORTEST_KEY:
                    text = text.replace(secret, f"[{name}]")
        return text


def servers_of(given: Mapping[str, object], where: str) -> dict[str, Server]:
    """Servers by name.

    Args:
        where: Begins the message, which repeats no value: it might be a key.

    Raises:
        ConfigError: One is not described as a server is, or names a variable that is not set.
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
                f"{where}.{name}.{missing[0]} names no environment variable that is set. Set it, or correct the name; "
                "the key itself never stands in a configuration"
            )
    return found
