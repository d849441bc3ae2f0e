"""The file `demonstrations.json` in a policy's folder: messages that are part of the policy.

    {
      "version": 2,
      "trainer": NAME,
      "demonstrations": {ROLE: [[USER MESSAGE, ASSISTANT MESSAGE], ...]},
      "tasks": {ROLE: [ID, ...]}
    }

`tasks` has the id of each demonstration's task. An evaluation of such a folder inserts the
demonstrations into the calls of each role, except those of the task itself, which have its answer.
The folder's weights alone are another policy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import ConfigError
from harness.records import Demonstrations
from harness.runs.folder import read_json

FILE = "demonstrations.json"
VERSION = 2


@dataclass(frozen=True)
class PolicyDemonstrations:
    """The demonstrations in a policy's folder.

    Attributes:
        tasks: By role, the id of each demonstration's task.
    """

    by_role: Demonstrations = field(default_factory=dict)
    tasks: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def for_task(self, task: str) -> Demonstrations:
        """Return the demonstrations by role without those of a task."""
        by_role: dict[str, list[Sequence[Mapping[str, Any]]]] = {}
        for role, pairs in self.by_role.items():
            shown = []
            for pair, of_task in zip(pairs, self.tasks[role], strict=True):
                if of_task != task:
                    shown.append(pair)
            if shown:
                by_role[role] = shown
        return by_role


def demonstrations_in(folder: str | Path) -> PolicyDemonstrations:
    """Return the demonstrations in a policy's folder; empty if it has none.

    Args:
        folder: A policy as named in runs; only local folders can have demonstrations.

    Raises:
        ConfigError: The file has another version or another form.
        UserError: It cannot be read.
    """
    file = Path(folder) / FILE
    # os.path takes any text as the name of a policy, also one that is too long for a file.
    if not folder or not os.path.isfile(file):
        return PolicyDemonstrations()
    data = read_json(file, "Export the policy again")
    if data.get("version") != VERSION:
        raise ConfigError(
            f"{file} has version {data.get('version')!r}, and this harness reads {VERSION}: "
            "use the harness that wrote it"
        )
    by_role, tasks = data.get("demonstrations"), data.get("tasks")
    if not isinstance(by_role, dict) or not all(_are_pairs(shown) for shown in by_role.values()):
        raise ConfigError(
            f"{file} is damaged: `demonstrations` must have a list of pairs of messages "
            "for each role. Export the policy again"
        )
    if not isinstance(tasks, dict) or not all(
        _are_tasks(tasks.get(role), shown) for role, shown in by_role.items()
    ):
        raise ConfigError(
            f"{file} is damaged: `tasks` must have the id of each demonstration's task for each "
            "role. Export the policy again"
        )
    return PolicyDemonstrations({role: shown for role, shown in by_role.items() if shown}, tasks)


def refuse_demonstrations(folder: str | Path, where: str, instead: str) -> None:
    """Refuse a policy with demonstrations where they would be left out.

    Args:
        where: What would use the model without them; begins the message.
        instead: What to do; ends the message.

    Raises:
        ConfigError: The folder has demonstrations.
    """
    if demonstrations_in(folder).by_role:
        raise ConfigError(
            f"{where}: {folder} has {FILE}, and its model alone is another policy. {instead}"
        )


def _are_pairs(shown: Any) -> bool:
    if not isinstance(shown, list):
        return False
    for pair in shown:
        if not isinstance(pair, list) or len(pair) != 2:
            return False
        for message, role in zip(pair, ("user", "assistant"), strict=True):
            if not isinstance(message, dict) or message.get("role") != role:
                return False
    return True


def _are_tasks(tasks: Any, shown: list[Any]) -> bool:
    if not isinstance(tasks, list) or len(tasks) != len(shown):
        return False
    return all(isinstance(task, str) for task in tasks)
