"""The reference agent of dialogues in plain Python, which every framework's version must match."""

from __future__ import annotations

from harness.contracts.toolbox import Toolbox
from harness.records import JSON, Problem
from harness_dialogues.conversation import converse
from harness_dialogues.roles import AGENT, ROLES
from harness_sql.tool_loop.reference import follow


class ReferenceDialogue:
    """Call the model and its tools until a reply has no call, and send it to the user."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        messages: list[JSON] = [{"role": "system", "content": toolbox.prompts.system(problem)}]

        async def answer(text: str) -> str:
            messages.append({"role": "user", "content": text})
            words, cut_off = await follow(toolbox.llm(AGENT), toolbox, messages)
            messages.append({"role": "assistant", "content": words})
            return "" if cut_off else words

        return await converse(problem, toolbox, answer)
