"""Shared functions of both protocols."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.gateway.protocols import Given, Json

PIECE = 256
"""Characters per streamed event; the answer is complete before its first piece is sent."""


def text_of(content: str | Sequence[Given], kinds: Sequence[str]) -> str:
    """Return a message's content as one text, with each part on its own line.

    Raises:
        ValueError: A part is of another kind, such as an image.
    """
    if isinstance(content, str):
        return content
    for part in content:
        if part["type"] not in kinds:
            raise ValueError(
                f"content of type {part['type']!r} has no chat completion here; send text"
            )
    return "\n".join(part["text"] for part in content)


def assistant(text: str | None, calls: Sequence[Json]) -> Json:
    """Return a message of the policy in the format of chat completions."""
    reply: Json = {"role": "assistant", "content": text or (None if calls else "")}
    return {**reply, "tool_calls": list(calls)} if calls else reply


def call(call_id: str, name: str, arguments: str) -> Json:
    """Return a tool call in the format of chat completions."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def function(name: str, description: str | None, parameters: Given | None) -> Json:
    """Return a tool in the format of a chat completion request."""
    given = {"name": name, "description": description, "parameters": parameters}
    # Servers refuse null where they expect a text or a schema.
    present = {key: value for key, value in given.items() if value is not None}
    return {"type": "function", "function": present}


def pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces for a stream."""
    return (text[at : at + PIECE] for at in range(0, len(text), PIECE))


def rest(body: Given, known: Sequence[str]) -> Json:
    """Return parameters outside of the conversation, which the gateway overrides or records."""
    return {name: value for name, value in body.items() if name not in known and value is not None}
