"""The control flow of a conversation, the same in every framework."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_dialogues.prompts import OPENING, Prompts
from harness_dialogues.roles import USER


async def converse(
    problem: Problem, toolbox: Toolbox, answer: Callable[[str], Awaitable[str]]
) -> str:
    """Let the user and an agent talk by turns, and return the agent's last words.

    The conversation ends when the user ends it, or after `toolbox.max_turns` answered messages.

    Args:
        answer: The agent's turn: from the user's message to its own, after all tool calls. Empty if
            the agent still calls tools after `toolbox.max_turns` replies with calls. An empty
            message ends the conversation.

    Raises:
        httpx.HTTPError: The user's endpoint returned an error or no answer.
    """
    prompts: Prompts = toolbox.prompts
    user_messages = prompts.user_messages(problem)

    async def next_message() -> str:
        """Return the user's next message.

        In its request, its own messages are the model's, and the agent's a user's.
        """
        reply = await toolbox.llm(USER).complete(toolbox.http_client, user_messages)
        return (reply.get("content") or "").strip()

    last_words, message = "", problem.context.get(OPENING) or await next_message()
    for turn in range(1, toolbox.max_turns + 1):
        if prompts.ends(message) or not (reply_text := (await answer(message)).strip()):
            break
        last_words = reply_text
        if turn < toolbox.max_turns:
            user_messages += [
                {"role": "assistant", "content": message},
                {"role": "user", "content": reply_text},
            ]
            message = await next_message()
    return last_words
