"""The task set `mcp`: questions for agents with tools of MCP servers, frozen at load time."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path

from harness.contracts.environments import Tool
from harness.contracts.tasks import TaskSet, check_split
from harness.errors import ConfigError, EnvironmentFault, TaskSetError
from harness.plugins import make, task_set_spec
from harness.records import Task
from harness.util.parsing import digest
from harness_mcp_tools.environment import MCP, listed
from harness_mcp_tools.questions import tasks_of
from harness_mcp_tools.servers import Server, servers_of

SPLITS = ("train", "val", "test")


class McpTasks:
    """Questions of one file, of one file per split, or of another task set.

    Args:
        servers: Servers by name: `command`, `args`, `env`, or `url`, `headers`; and `per_attempt`,
            `tools`, `state`.
        path: One file of questions, with a column `split`.
        train: The file of the split `train`.
        val: The file of the split `val`.
        test: The file of the split `test`.
        tasks: A task set that provides the questions, with these tools instead of its own.
        options: Options of that task set.
    """

    def __init__(
        self,
        servers: dict[str, object],
        path: Path | None = None,
        train: Path | None = None,
        val: Path | None = None,
        test: Path | None = None,
        tasks: str | None = None,
        options: dict[str, object] | None = None,
    ) -> None:
        self.servers = servers_of(servers, "task.options.servers")
        if not self.servers:
            raise ConfigError(
                "task.options.servers is empty. Name a server; docs/mcp.md has an example"
            )
        splits = {}
        for name, file in zip(SPLITS, (train, val, test), strict=True):
            if file:
                splits[name] = file.expanduser()
        if sum((path is not None, bool(splits), tasks is not None)) != 1:
            raise ConfigError(
                "task set 'mcp' takes questions from exactly one source: "
                "task.options.path, files of splits "
                "(task.options.train, val, test), or another task set (task.options.tasks)"
            )
        self._files = splits if path is None else {"": path.expanduser()}
        self._inner: TaskSet | None = None
        if tasks is not None:
            self._inner = make(task_set_spec(tasks), options or {}, "task.options.options")

    def load(self, split: str) -> Sequence[Task]:
        """Return all tasks of a split, each with its servers and their tools at the first call.

        Raises:
            TaskSetError: The split does not exist or is empty, or a server does not start or gives
                no valid answer.
        """
        check_split("mcp", split, SPLITS)
        if self._inner is not None:
            equipped: list[Task] = []
            for task in self._inner.load(split):
                # The run's task set is this one; the inner one only supplies the tasks.
                equipped.append(self._equipped(replace(task, task_set=MCP), ""))
            return equipped
        questions = [task for task in self._questions if task.split == split]
        if not questions:
            files = ", ".join(map(str, self._files.values()))
            raise TaskSetError(f"{files}: split {split!r} is empty. Add questions")
        return [self._equipped(task, task.data[MCP]) for task in questions]

    @cached_property
    def _questions(self) -> list[Task]:
        tasks = []
        for split, file in self._files.items():
            tasks += tasks_of(file, split)
        return tasks

    def _equipped(self, task: Task, server_names: str) -> Task:
        """Return a task with its tools: of the servers that it names, or of all."""
        stripped = map(str.strip, server_names.split(","))
        names = list(filter(None, stripped)) or list(self.servers)
        # Checked before the tools are listed, which starts every server.
        for name in names:
            if name not in self.servers:
                raise TaskSetError(
                    f"question {task.id!r} names server {name!r}. "
                    f"There are: {', '.join(self.servers)}"
                )
        return replace(task, data={**task.data, MCP: [self._frozen[name] for name in names]})

    @cached_property
    def _offers(self) -> dict[str, tuple[str, Sequence[Tool]]]:
        """Return each server's own name and tools, requested once for all tasks."""
        offers = {}
        for name, server in self.servers.items():
            try:
                offers[name] = _offer(name, server)
            except EnvironmentFault as error:
                raise TaskSetError(
                    f"{error} (task.options.servers.{name}). Start it by hand to see more"
                ) from error
        # A model names a tool without its server, so names must be unique among all servers.
        taken: dict[str, str] = {}
        for name, (_, tools) in offers.items():
            missing = set(self.servers[name].tools) - {tool.name for tool in tools}
            if missing:
                raise TaskSetError(
                    f"task.options.servers.{name}.tools: it has no tool {min(missing)!r}"
                )
            for tool in tools:
                if tool.name in taken:
                    raise TaskSetError(
                        f"servers {taken[tool.name]!r} and {name!r} both have a tool {tool.name!r}. "
                        "Choose the tools "
                        f"to offer: task.options.servers.{name}.tools"
                    )
                taken[tool.name] = name
        return offers

    @cached_property
    def _frozen(self) -> dict[str, dict[str, object]]:
        frozen: dict[str, dict[str, object]] = {}
        for name, server in self.servers.items():
            _, tools = self._offers[name]
            frozen[name] = {
                "name": name,
                "server": server.model_dump(mode="json", exclude_defaults=True),
                "tools": [asdict(tool) for tool in tools],
            }
        return frozen

    def context(self, task: Task) -> Mapping[str, str]:
        if self._inner is not None:
            return self._inner.context(task)
        context = task.data["context"]
        return {"context": context} if context else {}

    def describe(self) -> Mapping[str, object]:
        """Return servers and tools with hashes of the questions.

        No command, path or address of this machine.
        """
        servers = {}
        for name, (title, tools) in self._offers.items():
            definitions = [tool.definition for tool in tools]
            servers[name] = {
                "server": title,
                "tools_sha256": digest({"tools": definitions}),
                "per_attempt": self.servers[name].own,
            }
        if self._inner is not None:
            return {"name": MCP, "servers": servers, "tasks": dict(self._inner.describe())}
        counts = {}
        hashes = {}
        for split in SPLITS:
            tasks = [task for task in self._questions if task.split == split]
            if tasks:
                counts[split] = len(tasks)
                hashes[split] = _hash(tasks)
        return {"name": MCP, "servers": servers, "counts": counts, "questions_sha256": hashes}

    def check(self) -> list[str]:
        """Return servers with changed tools, and changed files of the other task set."""
        changed = []
        for name, server in self.servers.items():
            try:
                now = _offer(name, server)
            except EnvironmentFault:
                continue  # an unreachable server does not mean that its tools changed
            if now != self._offers[name]:
                changed.append(f"the tools of server {name!r}")
        return changed + (self._inner.check() if self._inner is not None else [])


def _offer(name: str, server: Server) -> tuple[str, Sequence[Tool]]:
    """Call `listed` in a separate thread, because the caller may be in an event loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(listed(name, server))).result()


def _hash(tasks: Sequence[Task]) -> str:
    contents = []
    for task in tasks:
        context, servers = task.data["context"], task.data[MCP]
        contents.append([task.id, task.question, task.gold, task.cluster, context, servers])
    return hashlib.sha256(json.dumps(contents).encode()).hexdigest()
