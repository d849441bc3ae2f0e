"""The agent of dialogues in plain Python: what every framework's version must do, call for call."""

from __future__ import annotations

from typing import Any

from harness.records import Problem
from harness.toolbox import Toolbox
from harness_dialogues.conversation import converse
from harness_dialogues.prompts import AGENT, ROLES
from harness_sql.tool_loop.reference import calls_of, follow


class ReferenceDialogue:
    """Hear the user; ask, carry out what tools are called, ask again until a reply calls none; tell the user."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        messages: list[Any] = [{"role": "system", "content": toolbox.prompts.system(problem)}]

        async def answer(text: str) -> str:
            messages.append({"role": "user", "content": text})
            reply = await follow(toolbox.llm(AGENT), toolbox, messages)
            words = reply.get("content") or ""
            messages.append({"role": "assistant", "content": words})
            return "" if calls_of(reply) else words

        return await converse(problem, toolbox, answer)
