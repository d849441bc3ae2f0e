"""The description of a command-line agent: its command, variables and files, as templates."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

from harness.contracts.toolbox import LLM
from harness.errors import PluginError
from harness.rollout.processes import RUN_MARK

BRIDGE = Path(__file__).with_name("bridge.py")
SERVER = "tools"
"""Name of the MCP server with the environment's tools."""
INHERITED = ("PATH", "LANG", "LC_ALL", RUN_MARK)
"""Variables of this process that a command inherits; none of them holds a key."""
DEAD_PROXY = "http://127.0.0.1:9"
"""Proxy for every address but those of loopback. Nothing listens on the port `discard`."""
PLACEHOLDERS = frozenset(
    "base_url root_url api_key model sampling prompt folder max_turns server_command server_args mcp_servers".split()
)
"""Names that templates may use, as `$name` or `${name}`."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command-line agent. Texts are templates of `string.Template` with the names of `PLACEHOLDERS`.

    Attributes:
        command: The program, found on PATH, and its arguments.
        variables: Environment variables in addition to the common ones of `environment`.
        files: Files to write into the working folder, by relative path.
        stdin: What the command reads from its standard input.
        answer: Where the answer is: `output` (all of stdout), `output:FIELD` (a text field of the JSON object on
            stdout), `file:PATH` (a file in the working folder), or `reply` (the last recorded reply).
        install: How to install the command; part of the error where it is missing.
    """

    command: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    stdin: str = "$prompt"
    answer: str = "output"
    install: str = ""

    @property
    def templates(self) -> tuple[str, ...]:
        """Return all texts with placeholders."""
        return (*self.command, *self.variables.values(), *self.files.values(), self.stdin)

    @property
    def offers_tools(self) -> bool:
        """Return whether the command learns how to start the server of the environment's tools."""
        used = {name for text in self.templates for name in Template(text).get_identifiers()}
        return bool(used & {"mcp_servers", "server_command"})

    def check(self) -> str:
        """Return the path of the program.

        Raises:
            PluginError: A template has an unknown name, `answer` has another form, or PATH has no such program.
        """
        for text in self.templates:
            template = Template(text)
            unknown = set(template.get_identifiers()) - PLACEHOLDERS
            if unknown or not template.is_valid():
                names = ", ".join(f"${name}" for name in sorted(unknown)) or "a single $"
                raise PluginError(
                    f"command-line agent {self.command[0]!r}: {names} in {text[:80]!r} is no placeholder. "
                    f"Write $$ for a dollar sign, or one of {', '.join(sorted(PLACEHOLDERS))}"
                )
        kind, _, value = self.answer.partition(":")
        if (kind, bool(value)) not in {
            ("output", False),
            ("output", True),
            ("file", True),
            ("reply", False),
        }:
            raise PluginError(
                f"command-line agent {self.command[0]!r}: answer {self.answer!r} is unknown. "
                "Write output, output:FIELD, file:PATH or reply"
            )
        program = shutil.which(self.command[0])
        if program is None:
            advice = f": {self.install}" if self.install else ""
            raise PluginError(
                f"command {self.command[0]!r} is not on PATH. Install it{advice}, or add its folder to PATH"
            )
        return program


def placeholders(
    llm: LLM, prompt: str, folder: Path, socket: Path, max_turns: int
) -> dict[str, str]:
    """Return the values of all placeholders of one attempt.

    Args:
        folder: The working folder.
        socket: Where the environment's tools are served.
    """
    arguments = ["-I", "-S", str(BRIDGE), str(socket)]
    server = {"command": sys.executable, "args": arguments}
    return {
        "base_url": llm.base_url,
        "root_url": llm.base_url.removesuffix("/v1"),
        "api_key": llm.api_key,
        "model": llm.model,
        "sampling": json.dumps(dict(llm.sampling)),
        "prompt": prompt,
        "folder": str(folder),
        "max_turns": str(max_turns),
        "server_command": json.dumps(sys.executable),
        "server_args": json.dumps(arguments),
        "mcp_servers": json.dumps({"mcpServers": {SERVER: server}}),
    }


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return a template with its placeholders replaced. Values are not templates."""
    return Template(text).substitute(values)


def environment(line: CommandLine, values: Mapping[str, str]) -> dict[str, str]:
    """Return all environment variables of a command.

    HOME is the working folder. Proxies have a dead address, except for loopback, where the relay listens.
    """
    folder = values["folder"]
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), DEAD_PROXY)
    proxies["no_proxy"] = "127.0.0.1,localhost"
    return {
        **{name: os.environ[name] for name in INHERITED if name in os.environ},
        "HOME": folder,
        "TMPDIR": folder,
        "TERM": "dumb",
        "NO_COLOR": "1",
        "DO_NOT_TRACK": "1",
        "DISABLE_TELEMETRY": "1",
        "OTEL_SDK_DISABLED": "true",
        **proxies,
        **{name.upper(): value for name, value in proxies.items()},
        **{name: filled(value, values) for name, value in line.variables.items()},
    }
