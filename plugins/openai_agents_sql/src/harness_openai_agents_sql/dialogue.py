"""The agent of dialogues as one agent of the OpenAI Agents SDK: a run a turn, whose items the next one begins with."""

from __future__ import annotations

from agents import TResponseInputItem

from harness.records import Problem
from harness.toolbox import Toolbox
from harness_dialogues.conversation import converse
from harness_dialogues.prompts import AGENT, ROLES
from harness_openai_agents_sql.tools import Session, caller, follow


class OpenAIAgentsDialogue:
    """The runner hears the user, asks the model and calls the tools, until a reply calls none."""

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
