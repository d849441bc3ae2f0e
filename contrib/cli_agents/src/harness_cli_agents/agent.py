"""Runs a command-line agent, one process per attempt, as an agent of harness."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from harness.contracts.toolbox import LAST_REPLY, Toolbox
from harness.records import Problem
from harness_cli_agents.command import CommandLine as CommandLine
from harness_cli_agents.command import environment, filled, placeholders
from harness_cli_agents.process import CommandFailed, Finished, limited, run
from harness_cli_agents.relay import Relay, relayed
from harness_cli_agents.tools import served


class CommandAgent:
    """Base class of command-line agents. A subclass states `line`, and `program` and `roles` if they differ.

    The attempt's deadline is the command's: its process group is killed.

    Attributes:
        line: The command.
        roles: The command's only model endpoint has the first role.

    Raises:
        PluginError: The command is not on PATH, or its description has an error.
    """

    program: ClassVar[str] = "tool_loop"
    roles: ClassVar[tuple[str, ...]] = ("assistant",)
    line: ClassVar[CommandLine]

    def __init__(self) -> None:
        self._executable = self.line.check()

    def prompt(self, problem: Problem, toolbox: Toolbox) -> str:
        """Return the text that the command gets: by default the program's messages, joined."""
        messages = toolbox.prompts.messages(problem)
        return "\n\n".join(message["content"] for message in messages)

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        """Run the command in a new working folder, and return its answer.

        Raises:
            CommandFailed: A model call failed, or it ended with a status other than 0, without an answer, or without
                the environment's tools.
        """
        with tempfile.TemporaryDirectory(prefix="harness-", ignore_cleanup_errors=True) as place:
            folder, socket = Path(place, "work"), Path(place, "tools")
            folder.mkdir()
            llm = toolbox.llm(self.roles[0])
            async with (
                served(toolbox, socket) as tools,
                relayed(llm.base_url, toolbox.http_client) as relay,
            ):
                values = placeholders(
                    replace(llm, base_url=relay.base_url),
                    self.prompt(problem, toolbox),
                    folder,
                    socket,
                    toolbox.max_turns,
                )
                finished = await self._run(values, Path(place), relay)
            if finished.status:
                why = finished.reason.replace(llm.api_key, "KEY")
                raise CommandFailed(
                    f"{self.line.command[0]} ended with status {finished.status}: {why}"
                )
            if toolbox.tools and self.line.offers_tools and not tools.listed:
                raise CommandFailed(
                    f"{self.line.command[0]} ended without reading the list of the environment's tools"
                )
            return self._answer(finished, folder)

    async def _run(self, values: Mapping[str, str], place: Path, relay: Relay) -> Finished:
        """Write the files, and run the command in the working folder."""
        folder = Path(values["folder"])
        for name, template in self.line.files.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(filled(template, values), encoding="utf-8")
        command = [self._executable, *(filled(one, values) for one in self.line.command[1:])]
        stdin = filled(self.line.stdin, values)
        variables = environment(self.line, values)
        return await run(command, variables, folder, place, stdin, relay.failed)

    def _answer(self, finished: Finished, folder: Path) -> str:
        kind, _, value = self.line.answer.partition(":")
        if kind == "reply":
            return LAST_REPLY
        if kind == "file":
            text = _of_file(folder / value, self.line.command[0])
        elif value:
            text = _of_json(finished.output, value, self.line.command[0])
        else:
            text = finished.output
        return text.strip()


def _of_file(file: Path, name: str) -> str:
    try:
        return limited(file)
    except OSError as error:
        raise CommandFailed(f"{name} left no answer in {file.name}: {error.strerror}") from error


def _of_json(output: str, field: str, name: str) -> str:
    """Return a text field of the JSON object on stdout.

    Raises:
        CommandFailed: It is no such object; the message has the beginning of the output.
    """
    try:
        found = json.loads(output)[field]
    except (ValueError, KeyError, TypeError, RecursionError):
        found = None
    if not isinstance(found, str):
        raise CommandFailed(
            f"{name} wrote no JSON object with a text {field!r}: {output.strip()[:200]!r}"
        )
    return found
