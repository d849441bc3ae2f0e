"""How user and agent talk, for agents of all frameworks: whose turn it is, what the user is asked, when it ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from harness.records import Problem
from harness.toolbox import Toolbox
from harness_dialogues.prompts import OPENING, USER, Prompts


async def converse(
    problem: Problem, toolbox: Toolbox, answer: Callable[[str], Awaitable[str]]
) -> str:
    """Have the user and an agent talk by turns, and return the agent's last words.

    The user ends the conversation, or `toolbox.max_turns` of its messages have been answered.

    Args:
        answer: The agent's turn: from the user's message to its own, which follows all calls of tools. Empty where
            after `toolbox.max_turns` replies with calls the next one called tools, too, which ends the conversation;
            an agent that says nothing ends it as well.

    Raises:
        httpx.HTTPError: The user's endpoint answered with an error, or not at all.
    """
    prompts: Prompts = toolbox.prompts
    heard = prompts.user_messages(problem)

    async def said() -> str:
        """The user's next message: its own are the model's, and the agent's a user's."""
        reply = await toolbox.llm(USER).complete(toolbox.http_client, heard)
        return (reply.get("content") or "").strip()

    answered, message = "", problem.context.get(OPENING) or await said()
    for turn in range(1, toolbox.max_turns + 1):
        if prompts.ends(message) or not (words := (await answer(message)).strip()):
            break
        answered = words
        if turn < toolbox.max_turns:
            heard += [{"role": "assistant", "content": message}, {"role": "user", "content": words}]
            message = await said()
    return answered
