"""The agent of dialogues in the OpenAI Agents SDK: one run per turn, with earlier items."""

from __future__ import annotations

from agents import TResponseInputItem

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_dialogues.conversation import converse
from harness_dialogues.roles import AGENT, ROLES
from harness_openai_agents_sql.tools import Session, caller, follow


class OpenAIAgentsDialogue:
    """Read the user's message, then call the model and its tools until a reply has no tool call."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        session = Session(toolbox)
        agent = caller(AGENT, toolbox.prompts.system(problem), session)
        items: list[TResponseInputItem] = []

        async def answer(text: str) -> str:
            run = await follow(agent, [*items, {"role": "user", "content": text}], session)
            items[:] = run.to_input_list()
            return "" if session.cut_off else str(run.final_output)

        return await converse(problem, toolbox, answer)
