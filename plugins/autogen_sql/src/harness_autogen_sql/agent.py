"""The self-correcting SQL agent as a GraphFlow of AutoGen AgentChat agents."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from autogen_agentchat.agents import BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.conditions import SourceMatchTermination
from autogen_agentchat.messages import BaseChatMessage, StructuredMessage
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow
from autogen_core import CancellationToken
from autogen_core.models import LLMMessage, SystemMessage, UserMessage
from pydantic import BaseModel

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_autogen_sql.running import chat_client, run_team
from harness_sql.self_correcting.prompts import Prompt, Prompts
from harness_sql.self_correcting.roles import ROLES


class Draft(BaseModel):
    """The message between the agents of the flow."""

    sql: str = ""
    result: str = ""
    remarks: str = ""
    queries: int = 0
    """Queries written so far."""
    done: bool = False


Step = Callable[[Draft, CancellationToken], Awaitable[Draft]]


class DraftAgent(BaseChatAgent):
    """An agent that turns one draft into the next."""

    def __init__(self, name: str, description: str, step: Step) -> None:
        super().__init__(name, description)
        self._step = step

    @property
    def produced_message_types(self) -> Sequence[type[BaseChatMessage]]:
        return (StructuredMessage[Draft],)

    async def on_messages(
        self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken
    ) -> Response:
        last = messages[-1]
        draft = last.content if isinstance(last, StructuredMessage) else Draft()
        content = await self._step(draft, cancellation_token)
        return Response(chat_message=StructuredMessage[Draft](content=content, source=self.name))

    async def on_reset(self, cancellation_token: CancellationToken) -> None:
        """Do nothing, because no state is kept between drafts."""


def team(problem: Problem, toolbox: Toolbox) -> GraphFlow:
    """Return the team of one rollout, because AutoGen's teams keep state."""
    prompts: Prompts = toolbox.prompts

    async def ask(prompt: Prompt, token: CancellationToken) -> str:
        messages: list[LLMMessage] = [
            SystemMessage(content=prompt.system),
            UserMessage(content=prompt.user, source="user"),
        ]
        reply = await chat_client(prompt.role, toolbox).create(messages, cancellation_token=token)
        return str(reply.content)

    async def write(draft: Draft, token: CancellationToken) -> Draft:
        sql = prompts.parse_sql(await ask(prompts.write(problem), token))
        return Draft(sql=sql, queries=1, done=toolbox.max_turns <= 1)

    async def execute(draft: Draft, token: CancellationToken) -> Draft:
        result = token.link_future(asyncio.ensure_future(toolbox.execute(draft.sql)))
        return draft.model_copy(update={"result": await result})

    async def check(draft: Draft, token: CancellationToken) -> Draft:
        remarks = await ask(prompts.check(problem, draft.sql, draft.result), token)
        return draft.model_copy(update={"remarks": remarks, "done": prompts.approves(remarks)})

    async def rewrite(draft: Draft, token: CancellationToken) -> Draft:
        reply = await ask(prompts.rewrite(problem, draft.sql, draft.result, draft.remarks), token)
        queries = draft.queries + 1
        return Draft(
            sql=prompts.parse_sql(reply), queries=queries, done=queries >= toolbox.max_turns
        )

    async def answer(draft: Draft, token: CancellationToken) -> Draft:
        return draft

    writer = DraftAgent("write_query", "Writes the first query.", write)
    executor = DraftAgent("execute", "Runs the query.", execute)
    checker = DraftAgent("check_query", "Checks the query and its result.", check)
    rewriter = DraftAgent("rewrite_query", "Repairs the query.", rewrite)
    final = DraftAgent("answer", "Hands the query over.", answer)

    def done(message: BaseChatMessage) -> bool:
        return isinstance(message, StructuredMessage) and bool(message.content.done)

    graph = DiGraphBuilder()
    for agent in (writer, executor, checker, rewriter, final):
        graph.add_node(agent)
    for source, target in ((writer, executor), (checker, rewriter), (rewriter, executor)):
        graph.add_edge(
            source, target, condition=lambda message: not done(message), activation_condition="any"
        )
        graph.add_edge(source, final, condition=done, activation_condition="any")
    graph.add_edge(executor, checker)
    graph.set_entry_point(writer)
    return GraphFlow(
        graph.get_participants(),
        graph=graph.build(),
        termination_condition=SourceMatchTermination(["answer"]),
        custom_message_types=[StructuredMessage[Draft]],
    )


class AutoGenSQL:
    """write -> execute -> check -> (end | rewrite -> ...); the last query is unchecked."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        result = await run_team(problem.question, team(problem, toolbox))
        last = result.messages[-1]
        assert isinstance(last, StructuredMessage)
        return str(last.content.sql)
