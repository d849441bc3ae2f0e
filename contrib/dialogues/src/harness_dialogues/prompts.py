"""The prompts of the program `dialogue`. Uses the standard library only, for cheap imports."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.records import Problem

STOP = "###STOP###"
"""The user's text that ends the conversation."""
OPENING = "opening"
"""Key in a task's context with the user's first words, if they do not come from the user policy."""

SYSTEM = """\
You talk to a user and act for them with the help of tools.
Call tools until you know what to say. Then say it to the user, without calling a tool."""
_PART = "\n\n{name}:\n{text}"
USER_SYSTEM = """\
You are a person who talks to an agent. Your instructions are below; the agent does not see them.
Write one message at a time, in your own words. Say what you want, and tell what you are asked for.
Make nothing up: what your instructions do not say you do not know.
When you have what you want, or the agent says that it cannot be had, write {stop} and nothing else.

Instructions:
{instructions}"""
GREETING = "Hello. What can I do for you?"
"""The first message to the user; a chat begins with the other side's words."""


class Prompts:
    """Build the messages that begin a conversation, the same in every framework."""

    hash = hashlib.sha256(
        "\0".join((SYSTEM, _PART, USER_SYSTEM, GREETING, STOP, OPENING)).encode()
    ).hexdigest()[:16]

    def system(self, problem: Problem) -> str:
        """Return the agent's system prompt: the task's context, each text under its name."""
        context = {name: text for name, text in problem.context.items() if name != OPENING}
        return SYSTEM + "".join(
            _PART.format(name=name.capitalize(), text=text) for name, text in context.items()
        )

    def user_messages(self, problem: Problem) -> list[dict[str, str]]:
        """Return the user's first request.

        The task's question is the user's private instructions.
        """
        system = USER_SYSTEM.format(stop=STOP, instructions=problem.question)
        return [{"role": "system", "content": system}, {"role": "user", "content": GREETING}]

    def ends(self, text: str) -> bool:
        """Return whether the user's text ends the conversation; an empty one does."""
        return STOP in text or not text


PROMPTS = Prompts()
