"""The team as Microsoft Agent Framework means it without its orchestrations: an agent whose tools run other agents.

The handoff orchestration is a distribution of its own (`agent-framework-orchestrations`), which is not installed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import cast

from agent_framework import Agent, ChatContext, ChatMiddleware, ChatOptions, FunctionTool

from harness.records import Problem
from harness.toolbox import Toolbox
from harness_agent_framework_sql.client import chat_client
from harness_agent_framework_sql.tools_idiomatic import as_function
from harness_teams.names import CRITIC, PLANNER, ROLES
from harness_teams.prompts import TeamPrompts
from harness_teams.workers import Workers


def member(
    role: str, system: str, toolbox: Toolbox, tools: Sequence[FunctionTool] = (), *more: ChatMiddleware
) -> Agent:
    """An agent of the team."""
    return Agent(
        chat_client(role, toolbox, {"max_iterations": max(1, toolbox.max_turns)}),
        system,
        name=role,
        tools=list(tools),
        default_options=cast("ChatOptions[None]", {**toolbox.llm(role).sampling}),
        middleware=list(more),
    )


class Stop(ChatMiddleware):
    """The planner is not asked again once a worker raised: the framework would show it that and go on."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        if self._workers.raised is not None:
            raise self._workers.raised
        await call_next()


def functions(toolbox: Toolbox) -> list[FunctionTool]:
    """The toolbox's tools."""
    return [as_function(tool, toolbox) for tool in toolbox.tools]


async def work(role: str, task: Problem, part: Toolbox) -> str:
    """A run of a worker."""
    texts = part.prompts.worker
    return (await member(role, texts.system, part, functions(part)).run(texts.user(task))).text.strip()


class AgentFrameworkTeamIdiomatic:
    """The planner's session goes on with the critic's words."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        prompts: TeamPrompts = toolbox.prompts
        workers = Workers(problem.task_id, toolbox, work)
        planner = member(PLANNER, prompts.planner.system, toolbox, functions(workers.toolbox), Stop(workers))
        session = planner.create_session()
        answer = (await planner.run(prompts.planner.user(problem), session=session)).messages[-1].text.strip()
        review = replace(problem, context=prompts.review(workers.reports, answer))
        said = (await member(CRITIC, prompts.critic.system, toolbox).run(prompts.critic.user(review))).text
        if prompts.approves(said):
            return answer
        return (await planner.run(said, session=session)).messages[-1].text.strip()
