"""An AutoGen group chat that keeps its history: writer, database and checker take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.conditions import FunctionalTermination
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage, TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import CancellationToken

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_autogen_sql.running import chat_client, run_team


class Database(BaseChatAgent):
    """Run the query of the last message and send its result to the chat."""

    def __init__(self, toolbox: Toolbox) -> None:
        super().__init__("database", "Runs the query.")
        self._toolbox = toolbox

    @property
    def produced_message_types(self) -> Sequence[type[BaseChatMessage]]:
        return (TextMessage,)

    async def on_messages(
        self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken
    ) -> Response:
        sql = self._toolbox.prompts.parse_sql(messages[-1].to_text())
        result = cancellation_token.link_future(asyncio.ensure_future(self._toolbox.execute(sql)))
        return Response(
            chat_message=TextMessage(content=f"Result:\n{await result}", source=self.name)
        )

    async def on_reset(self, cancellation_token: CancellationToken) -> None:
        """Do nothing, because no state is kept between messages."""


class AutoGenSQLIdiomatic:
    """A round-robin chat of `write_query`, the database and `check_query` with a shared history."""

    roles = ("write_query", "check_query")

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        prompts = toolbox.prompts
        task = prompts.write(problem)
        writer = AssistantAgent(
            "write_query",
            chat_client("write_query", toolbox),
            system_message=task.system,
            description="Writes.",
        )
        checker = AssistantAgent(
            "check_query",
            chat_client("check_query", toolbox),
            system_message=prompts.check(problem, "", "").system,
            description="Checks.",
        )
        written = 0

        def ended(messages: Sequence[BaseAgentEvent | BaseChatMessage]) -> bool:
            nonlocal written
            written += sum(message.source == "write_query" for message in messages)
            last = messages[-1]
            return written >= toolbox.max_turns or (
                last.source == "check_query" and prompts.approves(last.to_text())
            )

        chat = RoundRobinGroupChat(
            [writer, Database(toolbox), checker], termination_condition=FunctionalTermination(ended)
        )
        result = await run_team(task.user, chat)
        drafts = [message for message in result.messages if message.source == "write_query"]
        return str(prompts.parse_sql(drafts[-1].to_text()))
