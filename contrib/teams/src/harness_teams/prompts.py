"""The prompts of the program `team`, and the tools of its planner."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness import Tool
from harness_sql.tool_loop.prompts import READING, Prompts
from harness_teams.names import WORKERS

PLANNER = """\
You lead workers. Each has tools that you have not, and sees nothing but the task that you hand over.
Hand tasks over until you know the answer. Then give the answer in words, without handing anything over."""
WORKER = """\
You do a task with the help of tools.
Call tools until it is done. Then report what you found in words, without calling a tool."""
CRITIC = """\
You check a team's answer against what its workers reported.
Reply CORRECT, or WRONG and in one sentence what to do."""
HANDOFF = "Hand a task in words to {worker}, which answers with what it found. Its tools:\n{tools}"
_TOOL = "{name}: {description}"
_REPORT = "{worker} was asked: {task}\n{worker} reported: {text}"
_APPROVED = re.compile(r"\W*correct\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Handoff:
    """A planner's tool: its worker and the worker's tools."""

    tool: Tool
    worker: str
    tools: tuple[Tool, ...]


@dataclass
class Report:
    """The task of a worker and its reply, in order of the tasks."""

    worker: str
    task: str
    text: str = ""

    def __str__(self) -> str:
        return _REPORT.format(worker=self.worker, task=self.task, text=self.text)


class TeamPrompts:
    """Build every member's first messages, the same in every framework.

    Args:
        tools: Tools of the environment, distributed to the workers in turn.
    """

    planner = Prompts(PLANNER)
    worker = Prompts(WORKER, asked="Task")
    critic = Prompts(CRITIC)

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        self.handoffs = tuple(
            _handoff(worker, tuple(tools[at :: len(WORKERS)]))
            for at, worker in enumerate(WORKERS)
            if tools[at:]
        )
        texts = (HANDOFF, _TOOL, _REPORT, _APPROVED.pattern, READING, *WORKERS)
        parts = (self.planner.hash, self.worker.hash, self.critic.hash, *texts)
        self.hash = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    def again(
        self, context: Mapping[str, str], reports: Sequence[Report], answer: str, critique: str
    ) -> dict[str, str]:
        """Return the planner's further context after a critic rejected its answer."""
        return {**context, **self.review(reports, answer), "critic": critique}

    def review(self, reports: Sequence[Report], answer: str) -> dict[str, str]:
        """Return the critic's further context."""
        return {"reports": "\n".join(map(str, reports)) or "none", "answer": answer}

    def approves(self, reply: str) -> bool:
        """Return whether a critic's reply accepts the answer."""
        return _APPROVED.match(reply) is not None


def _handoff(worker: str, tools: tuple[Tool, ...]) -> Handoff:
    descriptions = "\n".join(
        _TOOL.format(name=tool.name, description=tool.description) for tool in tools
    )
    parameters = {
        "type": "object",
        "properties": {
            "task": {"type": "string", "description": "All that the worker needs to know."}
        },
        "required": ["task"],
        "additionalProperties": False,
    }
    return Handoff(
        Tool(
            f"transfer_to_{worker}", HANDOFF.format(worker=worker, tools=descriptions), parameters
        ),
        worker,
        tools,
    )
