"""The agent of dialogues as an AutoGen AssistantAgent, which keeps its history from run to run."""

from __future__ import annotations

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_autogen_sql.tools import Caller
from harness_dialogues.conversation import converse
from harness_dialogues.roles import AGENT, ROLES


class AutoGenDialogue:
    """Read the user's message, then call the model and its tools until a reply has no tool call."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        caller = Caller(AGENT, toolbox.prompts.system(problem), toolbox)

        async def answer(text: str) -> str:
            words = await caller.follow(text)
            return "" if caller.client.cut_off else words

        return await converse(problem, toolbox, answer)
