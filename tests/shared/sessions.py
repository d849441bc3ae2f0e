"""Calls in a session of an environment, recorded as those of an agent are."""

from __future__ import annotations

from collections.abc import Mapping

from harness.contracts.environments import Environment
from harness.errors import EnvironmentFault
from harness.records import JSON, Problem, Task, ToolCall
from harness.rollout.request import RolloutRequest
from harness.rollout.tools import HostToolbox


def toolbox(
    made: Environment,
    task: Task,
    timeout_s: float = 20.0,
    max_chars: int = 400,
    *,
    name: str,
    program: str,
) -> HostToolbox:
    """The host's side of an attempt at a task.

    Args:
        made: The environment.
        timeout_s: Deadline of a call.
        max_chars: Characters of a call's text.
        name: What the environment is called.
    """
    payload = made.payload(task, {"timeout_s": timeout_s, "max_rows": 5, "max_chars": max_chars})
    problem = Problem(task.id, task.question)
    request = RolloutRequest(problem, program, name, payload, "train", 1, {}, timeout_s, 60.0, 0)
    return HostToolbox(request, lambda role: "", "", "", None)  # type: ignore[arg-type]


async def played(box: HostToolbox, *calls: tuple[str, Mapping[str, JSON]]) -> list[ToolCall]:
    """The record of calls in a session, up to a fault."""
    await box.open(f"test/{id(box)}")
    try:
        for call in calls:
            await box.call(*call)
    except EnvironmentFault:
        assert box.fault
    await box.close()
    return box.tool_calls
