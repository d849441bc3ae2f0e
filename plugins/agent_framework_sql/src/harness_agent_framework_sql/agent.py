"""The self-correcting SQL agent as a workflow of Microsoft Agent Framework."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent_framework import (
    Agent,
    Case,
    Default,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
)

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_agent_framework_sql.client import chat_client, options
from harness_sql.self_correcting.prompts import Prompt, Prompts
from harness_sql.self_correcting.roles import ROLES


@dataclass(frozen=True)
class Draft:
    """The message between executors."""

    sql: str
    queries: int
    """Queries written so far."""
    result: str = ""
    remarks: str = ""


async def ask(prompt: Prompt, toolbox: Toolbox) -> str:
    """Make one call of a role, as an agent without tools."""
    agent = Agent(
        chat_client(prompt.role, toolbox),
        prompt.system,
        name=prompt.role,
        default_options=options(prompt.role, toolbox),
    )
    return (await agent.run(prompt.user)).text


def workflow(problem: Problem, toolbox: Toolbox) -> Workflow:
    """Return the workflow of one rollout, since a workflow has one run at a time."""
    prompts: Prompts = toolbox.prompts

    @executor(id="write")
    async def write(question: str, context: WorkflowContext[Draft]) -> None:
        reply = await ask(prompts.write(problem), toolbox)
        await context.send_message(Draft(prompts.parse_sql(reply), queries=1))

    @executor(id="execute")
    async def execute(draft: Draft, context: WorkflowContext[Draft]) -> None:
        await context.send_message(replace(draft, result=await toolbox.execute(draft.sql)))

    @executor(id="check")
    async def check(draft: Draft, context: WorkflowContext[Draft]) -> None:
        remarks = await ask(prompts.check(problem, draft.sql, draft.result), toolbox)
        await context.send_message(replace(draft, remarks=remarks))

    @executor(id="rewrite")
    async def rewrite(draft: Draft, context: WorkflowContext[Draft]) -> None:
        reply = await ask(prompts.rewrite(problem, draft.sql, draft.result, draft.remarks), toolbox)
        await context.send_message(Draft(prompts.parse_sql(reply), draft.queries + 1))

    @executor(id="answer")
    async def answer(draft: Draft, context: WorkflowContext[None, str]) -> None:
        await context.yield_output(draft.sql)

    def last(draft: Draft) -> bool:
        """Return whether this is the last allowed query, which is the answer without a check."""
        return draft.queries >= toolbox.max_turns

    def approved(draft: Draft) -> bool:
        return prompts.approves(draft.remarks)

    graph = WorkflowBuilder(3 * toolbox.max_turns, start_executor=write).add_edge(execute, check)
    for source, done, more in (
        (write, last, execute),
        (check, approved, rewrite),
        (rewrite, last, execute),
    ):
        graph.add_switch_case_edge_group(source, [Case(done, answer), Default(more)])
    return graph.build()


class AgentFrameworkSQL:
    """write -> execute -> check -> (end | rewrite -> ...); the last query is unchecked."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        run = await workflow(problem, toolbox).run(problem.question)
        return str(run.get_outputs()[-1])
