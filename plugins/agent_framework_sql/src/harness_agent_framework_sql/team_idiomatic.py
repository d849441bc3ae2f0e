"""The team in Microsoft Agent Framework without orchestrations: agents as tools of an agent.

The handoff orchestration is a separate distribution (`agent-framework-orchestrations`), which is
not
installed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from agent_framework import ChatContext, ChatMiddleware

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_agent_framework_sql.tools_idiomatic import functions, member
from harness_teams.names import CRITIC, PLANNER, ROLES
from harness_teams.prompts import TeamPrompts
from harness_teams.workers import Workers


class Stop(ChatMiddleware):
    """Stop the planner after a worker raised. The framework would let it continue."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        if self._workers.raised is not None:
            raise self._workers.raised
        await call_next()


async def work(role: str, task: Problem, part: Toolbox) -> str:
    """Run a worker."""
    texts = part.prompts.worker
    worker = member(role, texts.system, part, functions(part), max(1, part.max_turns))
    return (await worker.run(texts.user(task))).text.strip()


class AgentFrameworkTeamIdiomatic:
    """The planner's session continues with the critic's remarks."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        prompts: TeamPrompts = toolbox.prompts
        workers, rounds = Workers(problem.task_id, toolbox, work), max(1, toolbox.max_turns)
        planner = member(
            PLANNER,
            prompts.planner.system,
            toolbox,
            functions(workers.toolbox),
            rounds,
            Stop(workers),
        )
        session = planner.create_session()
        answer = (
            (await planner.run(prompts.planner.user(problem), session=session))
            .messages[-1]
            .text.strip()
        )
        review = replace(problem, context=prompts.review(workers.reports, answer))
        reply = (
            await member(CRITIC, prompts.critic.system, toolbox, (), rounds).run(
                prompts.critic.user(review)
            )
        ).text
        if prompts.approves(reply):
            return answer
        return (await planner.run(reply, session=session)).messages[-1].text.strip()
