"""The agent of dialogues as an agent of Microsoft Agent Framework with its history in a session."""

from __future__ import annotations

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_agent_framework_sql.tools import caller
from harness_dialogues.conversation import converse
from harness_dialogues.roles import AGENT, ROLES


class AgentFrameworkDialogue:
    """Read the user's message, then call the model and its tools until a reply has no tool call."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        agent, turns = caller(AGENT, toolbox.prompts.system(problem), toolbox)
        session = agent.create_session()

        async def answer(text: str) -> str:
            turns.replies = 0
            run = await agent.run(text, session=session)
            return "" if turns.cut_off else run.messages[-1].text

        return await converse(problem, toolbox, answer)
