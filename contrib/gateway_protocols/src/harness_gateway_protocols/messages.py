"""Anthropic's Messages API (https://docs.anthropic.com/en/api/messages)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import orjson

from harness.gateway.protocols import Given, Json, Written, given
from harness_gateway_protocols.words import assistant, call, function, pieces, rest, text_of

MAPPED = (
    "messages",
    "system",
    "tools",
    "tool_choice",
    "stop_sequences",
    "stream",
    "metadata",
    "thinking",
)
TEXT = ("text",)
NOT_ASKED = ("disabled", "adaptive")
"""Values of `thinking` that change nothing: the second leaves it to the model, and policies think
in text or not at all.
"""
FAILED = "Error: "
"""Text before a tool's result that its client marks as an error."""
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
ERRORS = {
    "bad_request": "invalid_request_error",
    "prompt_too_long": "invalid_request_error",
    "body_too_large": "request_too_large",
    "too_many_calls": "rate_limit_error",
    "upstream_timeout": "timeout_error",
    "queue_full": "overloaded_error",
}
"""The protocol's names of error codes."""
STOPS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


class Messages:
    """`POST /v1/messages`.

    Arguments of tool calls are objects in this protocol; a client's copy is converted back to the
    policy's spelling. A tool with `defer_loading` is hidden from the model until a search at the
    provider finds it. Without such a search, it is left out.
    """

    def asked(self, body: Given, written: Written) -> Json:
        """See `harness.gateway.protocols.ApiProtocol`."""
        thinking = body.get("thinking") or {}
        if (kind := thinking.get("type", "disabled")) not in NOT_ASKED:
            raise ValueError(
                f"thinking of type {kind!r} has no chat completion here; "
                "leave it out, or send 'disabled'"
            )
        messages: list[Json] = []
        if system := body.get("system"):
            messages.append({"role": "system", "content": text_of(system, TEXT)})
        for message in body["messages"]:
            messages += _messages(message["role"], message["content"], written)
        chat: Json = {"messages": messages}
        # Deferred tools are not offered before the client loads them.
        offered = [tool for tool in body.get("tools") or () if not tool.get("defer_loading")]
        if offered:
            chat["tools"] = list(map(_tool, offered))
        if choice := body.get("tool_choice"):
            named = {"type": "function", "function": {"name": choice.get("name")}}
            chat["tool_choice"] = named if choice["type"] == "tool" else CHOICES[choice["type"]]
            if choice.get("disable_parallel_tool_use"):
                chat["parallel_tool_calls"] = False
        if stops := body.get("stop_sequences"):
            chat["stop"] = stops
        if kind == "adaptive":
            chat["thinking"] = thinking  # overridden and recorded like any other parameter
        return chat | rest(body, MAPPED)

    def reply(self, body: Given, completion: Given) -> Json:
        """See `harness.gateway.protocols.ApiProtocol`."""
        choice = completion["choices"][0]
        usage = completion.get("usage") or {}
        calls = choice["message"].get("tool_calls") or ()
        return {
            "id": completion["id"],
            "type": "message",
            "role": "assistant",
            "model": completion.get("model") or body.get("model"),
            "content": list(_blocks(choice["message"])),
            "stop_reason": STOPS.get(
                choice.get("finish_reason"), "tool_use" if calls else "end_turn"
            ),
            "stop_sequence": None,
            "usage": {
                "input_tokens": usage.get("prompt_tokens") or 0,
                "output_tokens": usage.get("completion_tokens") or 0,
            },
        }

    def events(self, reply: Given) -> Iterator[tuple[str, Json]]:
        """See `harness.gateway.protocols.ApiProtocol`."""
        for event in _events(reply):
            yield event["type"], event

    def refused(self, error: Given) -> Json:
        """See `harness.gateway.protocols.ApiProtocol`."""
        details = error.get("error")
        if not isinstance(details, dict):
            details = {"message": str(details or error)}
        code = details.get("code")
        shown = {
            "type": ERRORS.get(str(code), "api_error"),
            "message": details.get("message") or str(details),
            "code": code,
        }
        return {"type": "error", "error": shown}


def _messages(role: str, content: str | Sequence[Given], written: Written) -> Iterator[Json]:
    """Convert a message to one or more, since chat completions separate tool results."""
    blocks: Sequence[Given] = (
        [{"type": "text", "text": content}] if isinstance(content, str) else content
    )
    if role == "assistant":
        words: list[Given] = []
        calls: list[Json] = []
        for block in blocks:
            if block["type"] == "tool_use":
                # The policy's own text of the arguments, so that its tokens are found again.
                text = written.text(block["id"], block["input"])
                calls.append(call(block["id"], block["name"], text))
            else:
                words.append(block)
        yield assistant(text_of(words, TEXT), calls)
        return
    yield from _user_messages(role, blocks)


def _user_messages(role: str, blocks: Sequence[Given]) -> Iterator[Json]:
    """Convert a user's blocks in order: one message per run of texts and per tool result."""
    words: list[Given] = []
    for block in blocks:
        if block["type"] != "tool_result":
            words.append(block)
            continue
        if words:
            raise ValueError(
                "text before a tool_result has no chat completion: "
                "results come first after the calls; "
                "send the text after them"
            )
        yield _result(block)
    if words:
        yield {"role": role, "content": text_of(words, TEXT)}


def _result(block: Given) -> Json:
    """Convert a tool's result. Its text keeps errors: chat completions have no field for them."""
    text = text_of(block.get("content") or "", TEXT)
    if block.get("is_error") and not text.lower().startswith("error"):
        text = f"{FAILED}{text}"
    return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": text}


def _tool(tool: Given) -> Json:
    if tool.get("type", "custom") != "custom":
        raise ValueError(
            f"a tool of type {tool['type']!r} runs on the provider's servers; "
            "offer one with an input_schema"
        )
    return function(tool["name"], tool.get("description"), tool["input_schema"])


def _blocks(message: Given) -> Iterator[Json]:
    calls: Sequence[Given] = message.get("tool_calls") or ()
    if (text := message.get("content")) or not calls:
        yield {"type": "text", "text": text or ""}
    for made in calls:
        of = made["function"]
        yield {
            "type": "tool_use",
            "id": made["id"],
            "name": of["name"],
            "input": given(of["arguments"]),
        }


def _events(reply: Given) -> Iterator[Json]:
    begun = {
        **reply,
        "content": [],
        "stop_reason": None,
        "usage": {**reply["usage"], "output_tokens": 0},
    }
    yield {"type": "message_start", "message": begun}
    for at, block in enumerate(reply["content"]):
        if block["type"] == "text":
            empty, kind, field, text = {**block, "text": ""}, "text_delta", "text", block["text"]
        else:
            text = orjson.dumps(block["input"]).decode()
            empty, kind, field = {**block, "input": {}}, "input_json_delta", "partial_json"
        yield {"type": "content_block_start", "index": at, "content_block": empty}
        for piece in pieces(text):
            yield {
                "type": "content_block_delta",
                "index": at,
                "delta": {"type": kind, field: piece},
            }
        yield {"type": "content_block_stop", "index": at}
    stopped = {"stop_reason": reply["stop_reason"], "stop_sequence": None}
    usage = {"output_tokens": reply["usage"]["output_tokens"]}
    yield {"type": "message_delta", "delta": stopped, "usage": usage}
    yield {"type": "message_stop"}
