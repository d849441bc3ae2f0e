"""The agent of dialogues: the graph of the tool-calling agent, with state kept between turns."""

from __future__ import annotations

from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_dialogues.conversation import converse
from harness_dialogues.roles import AGENT, ROLES
from harness_langgraph_sql.tools import Caller, LangGraphTools


class LangGraphDialogue(LangGraphTools):
    """user's message -> model -> (tools -> model ...) -> the agent's message."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        messages: list[AnyMessage] = [SystemMessage(toolbox.prompts.system(problem))]

        async def answer(text: str) -> str:
            messages[:] = await self.follow([*messages, HumanMessage(text)], Caller(toolbox, AGENT))
            last = messages[-1]
            return "" if "tool_calls" in last.additional_kwargs else str(last.text)

        return await converse(problem, toolbox, answer)
