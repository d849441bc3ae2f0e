"""OpenAI's Responses API, without state on the server.

See https://platform.openai.com/docs/api-reference/responses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.gateway.protocols import Given, Json, Written
from harness_gateway_protocols.words import assistant, call, function, pieces, rest, text_of

MAPPED = (
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "text",
    "max_output_tokens",
    "stream",
)
STATEFUL = ("previous_response_id", "conversation", "prompt", "background")
DEFAULTS = {"truncation": "disabled", "store": True}
"""Values that hold anyway, and need no record."""
TEXT = ("input_text", "output_text", "text")
CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}


class Responses:
    """`POST /v1/responses`."""

    def asked(self, body: Given, written: Written) -> Json:
        """See `harness.gateway.protocols.ApiProtocol`."""
        for name in STATEFUL:
            if body.get(name):
                raise ValueError(
                    f"{name} needs state on the server; send the whole conversation as `input`"
                )
        chat: Json = {"messages": _messages(body)}
        if body.get("tools"):
            chat["tools"] = [_tool(tool, name) for name, tool in _offered(body)]
        if (choice := body.get("tool_choice")) is not None:
            chat["tool_choice"] = choice if isinstance(choice, str) else _choice(choice)
        if body.get("parallel_tool_calls") is not None and "tools" in chat:
            chat["parallel_tool_calls"] = body["parallel_tool_calls"]
        if form := _form((body.get("text") or {}).get("format") or {}):
            chat["response_format"] = form
        if body.get("max_output_tokens") is not None:
            chat["max_tokens"] = body["max_output_tokens"]
        for name, value in rest(body, (*MAPPED, *STATEFUL)).items():
            # Clients send every parameter; one at its default is no wish.
            if DEFAULTS.get(name) != value:
                chat[name] = value
        return chat

    def reply(self, body: Given, completion: Given) -> Json:
        """See `harness.gateway.protocols.ApiProtocol`."""
        choice = completion["choices"][0]
        cut = CUT.get(choice.get("finish_reason"))
        status = "incomplete" if cut else "completed"
        usage = completion.get("usage") or {}
        prompt_tokens = usage.get("prompt_tokens") or 0
        completion_tokens = usage.get("completion_tokens") or 0
        items = _items(completion["id"], choice["message"], status)
        # The API echoes parameters of the request, and clients validate that they are there.
        echoed_names = ("instructions", "max_output_tokens", "temperature", "top_p")
        echoed = {name: body.get(name) for name in echoed_names}
        return {
            "id": completion["id"],
            "object": "response",
            "created_at": completion.get("created", 0),
            "status": status,
            "error": None,
            "incomplete_details": {"reason": cut} if cut else None,
            "model": completion.get("model") or body.get("model"),
            "output": [_named(item, body) for item in items],
            **echoed,
            "metadata": body.get("metadata") or {},
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "previous_response_id": None,
            "text": body.get("text") or {"format": {"type": "text"}},
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": body.get("tools") or [],
            "usage": {
                "input_tokens": prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt_tokens + completion_tokens,
            },
        }

    def events(self, reply: Given) -> Iterator[tuple[str, Json]]:
        """See `harness.gateway.protocols.ApiProtocol`."""
        for number, event in enumerate(_events(reply)):
            yield event["type"], {**event, "sequence_number": number}

    def refused(self, error: Given) -> Json:
        """See `harness.gateway.protocols.ApiProtocol`."""
        return dict(error)


def _messages(body: Given) -> list[Json]:
    messages: list[Json] = []
    if (instructions := body.get("instructions")) is not None:
        messages.append({"role": "system", "content": instructions})
    asked = body["input"]
    if isinstance(asked, str):
        return [*messages, {"role": "user", "content": asked}]
    spoken = False
    """Whether the last message is one of the policy to which further calls may belong."""
    for item in asked:
        kind = item.get("type") or "message"
        if kind == "function_call":
            name = _joined(item.get("namespace"), item["name"])
            made = call(item["call_id"], name, item["arguments"])
            if spoken:
                messages[-1] = assistant(
                    messages[-1]["content"], [*messages[-1].get("tool_calls", ()), made]
                )
            else:
                messages.append(assistant(None, [made]))
        elif kind == "function_call_output":
            text = text_of(item["output"], TEXT)
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": text})
        elif kind != "message":
            raise ValueError(
                f"input of type {kind!r} has no chat completion here; "
                "send messages and function calls"
            )
        elif item["role"] == "assistant":
            messages.append(assistant(text_of(item["content"], TEXT), ()))
        else:
            role = "system" if item["role"] == "developer" else item["role"]
            messages.append({"role": role, "content": text_of(item["content"], TEXT)})
        spoken = kind == "function_call" or (kind == "message" and item["role"] == "assistant")
    return messages


def _joined(namespace: str | None, name: str) -> str:
    """Return the policy's name of a tool, in which the namespace is a prefix."""
    return f"{namespace}__{name}" if namespace else name


def _namespaces(body: Given) -> Json:
    """Return namespace and name of every tool in a namespace, by the policy's name of it."""
    found: Json = {}
    for space in body.get("tools") or ():
        if space["type"] == "namespace":
            for tool in space["tools"]:
                names = {"namespace": space["name"], "name": tool["name"]}
                found[_joined(**names)] = names
    return found


def _offered(body: Given) -> list[tuple[str, Given]]:
    """Return all tools with the policy's names of them, those in namespaces too."""
    offered: list[tuple[str, Given]] = []
    for tool in body["tools"]:
        # Chat completions have no namespaces, so the policy sees joined names.
        if tool["type"] == "namespace":
            for inner in tool["tools"]:
                offered.append((_joined(tool["name"], inner["name"]), inner))
        else:
            offered.append((tool.get("name", ""), tool))
    return offered


def _named(item: Json, body: Given) -> Json:
    """Return an item of the output; a call of a tool in a namespace gets both names."""
    if item["type"] != "function_call":
        return item
    return {**item, **_namespaces(body).get(item["name"], {})}


def _tool(tool: Given, name: str) -> Json:
    if tool["type"] != "function":
        raise ValueError(
            f"a tool of type {tool['type']!r} runs on the provider's servers; offer functions"
        )
    made = function(name, tool.get("description"), tool.get("parameters"))
    if tool.get("strict"):
        made["function"]["strict"] = True
    return made


def _choice(choice: Given) -> Json:
    if choice["type"] != "function":
        raise ValueError(
            f"tool_choice of type {choice['type']!r} has no chat completion; name a function"
        )
    return {"type": "function", "function": {"name": choice["name"]}}


def _form(asked: Given) -> Json | None:
    if asked.get("type", "text") == "text":
        return None
    if asked["type"] != "json_schema":
        return dict(asked)
    schema = {name: value for name, value in asked.items() if name != "type"}
    return {"type": "json_schema", "json_schema": schema}


def _items(response_id: str, message: Given, status: str) -> Iterator[Json]:
    calls: Sequence[Given] = message.get("tool_calls") or ()
    if (text := message.get("content")) or not calls:
        content: list[Json] = [{"type": "output_text", "text": text or "", "annotations": []}]
        spoken: Json = {"type": "message", "id": f"msg_{response_id}", "role": "assistant"}
        yield {**spoken, "status": status, "content": content}
    for at, made in enumerate(calls):
        item: Json = {
            "type": "function_call",
            "id": f"fc_{response_id}_{at}",
            "call_id": made["id"],
        }
        yield {**item, **made["function"], "status": status}


def _events(reply: Given) -> Iterator[Json]:
    begun = {
        **reply,
        "status": "in_progress",
        "output": [],
        "usage": None,
        "incomplete_details": None,
    }
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for at, item in enumerate(reply["output"]):
        where = {"item_id": item["id"], "output_index": at}
        if item["type"] == "message":
            empty, parts = (
                {**item, "status": "in_progress", "content": []},
                list(_text(where, item["content"][0])),
            )
        else:
            empty, parts = (
                {**item, "status": "in_progress", "arguments": ""},
                list(_arguments(where, item)),
            )
        yield {"type": "response.output_item.added", "output_index": at, "item": empty}
        yield from parts
        yield {"type": "response.output_item.done", "output_index": at, "item": item}
    yield {"type": f"response.{reply['status']}", "response": dict(reply)}


def _text(where: Json, part: Json) -> Iterator[Json]:
    here = {**where, "content_index": 0}
    yield {"type": "response.content_part.added", **here, "part": {**part, "text": ""}}
    for piece in pieces(part["text"]):
        yield {"type": "response.output_text.delta", **here, "delta": piece, "logprobs": []}
    yield {"type": "response.output_text.done", **here, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **here, "part": part}


def _arguments(where: Json, item: Json) -> Iterator[Json]:
    for piece in pieces(item["arguments"]):
        yield {"type": "response.function_call_arguments.delta", **where, "delta": piece}
    done = {"arguments": item["arguments"], "name": item["name"]}
    yield {"type": "response.function_call_arguments.done", **where, **done}
