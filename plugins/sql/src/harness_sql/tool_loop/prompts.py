"""The texts of the program `tool_loop`. Standard library only, so that anything may import it."""

from __future__ import annotations

import hashlib

from harness.records import Problem

ROLES = ("assistant",)

SYSTEM = """\
You answer a question with the help of tools.
Call tools until you know the answer. Then give the answer in words, without calling a tool."""
SYSTEM_WITHOUT_TOOLS = """\
You answer a question. Think it through, then give the answer."""
_PART = "{name}:\n{text}\n\n"
_QUESTION = "{asked}: {question}"

FORM = "form of the answer"
"""The input that holds the form of the answers that the reward can score."""

READING = "3: no text of reasoning, no fence around a query"
"""Version of the way in which answers are read. It is part of the program's hash of prompts."""


class Prompts:
    """Build the first two messages, so that all frameworks send the same ones.

    Args:
        system: The first message.
        asked: The label of the question.
    """

    def __init__(self, system: str = SYSTEM, asked: str = "Question") -> None:
        self.system = system
        self._asked = _QUESTION.replace("{asked}", asked)
        self.hash = hashlib.sha256("\0".join((system, _PART, self._asked)).encode()).hexdigest()[
            :16
        ]

    def user(self, problem: Problem) -> str:
        """Return the task's context, with a label for each item, and the question."""
        parts = "".join(
            _PART.format(name=name.capitalize(), text=text)
            for name, text in problem.context.items()
        )
        return parts + self._asked.format(question=problem.question)

    def messages(self, problem: Problem) -> list[dict[str, str]]:
        """Return the messages of the first request, in order."""
        return [
            {"role": "system", "content": self.system},
            {"role": "user", "content": self.user(problem)},
        ]


PROMPTS = Prompts()
WITHOUT_TOOLS = Prompts(SYSTEM_WITHOUT_TOOLS)
