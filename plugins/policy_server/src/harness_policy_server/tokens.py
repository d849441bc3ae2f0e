"""Token ids of prompts and of the ends of replies, as in servers of policies."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from harness_policy_server.hermes import for_template

_USER = {"role": "user", "content": "Question"}
_REPLY = "Answer"


def prompt_ids(tokenizer: Any, body: Mapping[str, Any]) -> list[int]:
    """Render the chat template and tokenise the prompt.

    Args:
        body: A request; `messages`, `tools`, `tool_choice` and `chat_template_kwargs` count.
    """
    ids: list[int] = tokenizer.apply_chat_template(
        for_template(body["messages"]),
        tools=body.get("tools") or None,
        tool_choice=body.get("tool_choice") or "auto",
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
        **(body.get("chat_template_kwargs") or {}),
    )
    return ids


def stop_ids(generation_config: Any, tokenizer: Any) -> set[int]:
    """Return the token ids that end a response."""
    stop = generation_config.eos_token_id
    stops = stop if isinstance(stop, Sequence) else [stop]
    return {*stops, tokenizer.eos_token_id} - {None}


def end_of_turn(tokenizer: Any, stops: Collection[int], arguments: Mapping[str, Any]) -> int:
    """Return the stop token that ends a reply.

    It is the one that the chat template writes after a reply, else the tokenizer's own.

    Args:
        stops: As `stop_ids` returns them.
        arguments: Further arguments of the chat template.

    Raises:
        ValueError: There is none.
    """
    messages = [_USER, {"role": "assistant", "content": _REPLY}]
    shown: str = tokenizer.apply_chat_template(messages, tokenize=False, **arguments)
    after = shown.rpartition(_REPLY)[2]
    for token in tokenizer.encode(after, add_special_tokens=False):
        if token in stops:
            return int(token)
    if tokenizer.eos_token_id is None:
        raise ValueError("the policy's tokenizer has no token that ends a reply (eos_token)")
    return int(tokenizer.eos_token_id)
