"""The agent of dialogues as one CrewAI Flow per turn, which passes its messages to the next one."""

from __future__ import annotations

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_crewai_sql.tools import Conversation, follow
from harness_dialogues.conversation import converse
from harness_dialogues.roles import AGENT, ROLES


class CrewAIDialogue:
    """user's message -> model -> (tools -> model ...) -> the agent's message."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        conversation = Conversation(
            messages=[{"role": "system", "content": toolbox.prompts.system(problem)}]
        )

        async def answer(text: str) -> str:
            conversation.messages.append({"role": "user", "content": text})
            state = await follow(AGENT, toolbox, conversation)
            conversation.messages = [*state.messages, {"role": "assistant", "content": state.words}]
            return "" if state.calls else state.words

        return await converse(problem, toolbox, answer)
