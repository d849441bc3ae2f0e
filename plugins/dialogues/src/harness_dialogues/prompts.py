"""The texts of the program `dialogue`. Standard library only, so that anything may import it."""

from __future__ import annotations

import hashlib

from harness.records import Problem

USER, AGENT = ROLES = ("user", "agent")
STOP = "###STOP###"
"""What the user writes to end the conversation."""
OPENING = "opening"
"""Under this name a task's context has the user's first words, where they are not the user policy's."""

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
"""What the user hears first; a chat begins with the other side's words."""


class Prompts:
    """Builds the messages that begin a conversation, so that no framework does it differently."""

    hash = hashlib.sha256(
        "\0".join((SYSTEM, _PART, USER_SYSTEM, GREETING, STOP, OPENING)).encode()
    ).hexdigest()[:16]

    def system(self, problem: Problem) -> str:
        """What the agent is told: what the task set says of the task, each under its name, but no instruction."""
        told = {name: text for name, text in problem.context.items() if name != OPENING}
        return SYSTEM + "".join(
            _PART.format(name=name.capitalize(), text=text) for name, text in told.items()
        )

    def user_messages(self, problem: Problem) -> list[dict[str, str]]:
        """The user's first request; the task's question is the user's instructions, which nobody else is told."""
        system = USER_SYSTEM.format(stop=STOP, instructions=problem.question)
        return [{"role": "system", "content": system}, {"role": "user", "content": GREETING}]

    def ends(self, text: str) -> bool:
        """Whether the user's text ends the conversation; saying nothing does, too."""
        return STOP in text or not text


PROMPTS = Prompts()
