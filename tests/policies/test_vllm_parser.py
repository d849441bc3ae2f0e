"""Qwen2.5-Coder's tool calls in vLLM itself, where it is installed: registration, whole replies and streams."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionRequest,
)
from vllm.tool_parsers.abstract_tool_parser import ToolParserManager

from harness.util.tool_calls import QWEN_CODER
from harness_policy_server.vllm_plugin import register

CALL = '{"name": "execute", "arguments": {"sql": "SELECT 1"}}'
WANTED = [("execute", {"sql": "SELECT 1"})]


class Tokenizer:
    """The two things that a parser asks of a tokenizer: what ends a turn."""

    eos_token_id = 0
    eos_token = "<|im_end|>"

    def get_vocab(self) -> dict[str, int]:
        return {self.eos_token: 0}


def request(**more: Any) -> ChatCompletionRequest:
    tool = {"type": "function", "function": {"name": "execute", "parameters": {"type": "object"}}}
    asked = {"model": "m", "messages": [{"role": "user", "content": "?"}], "tools": [tool]}
    return ChatCompletionRequest.model_validate(asked | more)


def parser() -> Any:
    register()
    return ToolParserManager.get_tool_parser(QWEN_CODER)(Tokenizer())


def streamed(text: str, **more: Any) -> tuple[str, list[tuple[str, Any]]]:
    """Words and calls of a reply that comes letter by letter, each a token, and ends by the token that says so."""
    made, asked = parser(), request(**more)
    words, calls, ids = "", {}, []
    for end in range(1, len(text) + 2):
        before, now = text[: end - 1], text[:end]
        token = 0 if end > len(text) else ord(now[-1])
        ids.append(token)
        delta = made.extract_tool_calls_streaming(
            before, now, now[len(before) :], ids[:-1], ids, [token], asked
        )
        if delta is None:
            continue
        words += delta.content or ""
        for call in delta.tool_calls:
            assert call.index not in calls and call.id
            calls[call.index] = (call.function.name, json.loads(call.function.arguments))
    assert made.get_remaining_unstreamed_args() == ""
    return words, [calls[index] for index in sorted(calls)]


def test_the_entry_point_names_the_parser() -> None:
    from importlib.metadata import entry_points

    assert [
        point.load()
        for point in entry_points(group="vllm.general_plugins", name="harness_tool_parsers")
    ] == [register]
    register()
    assert QWEN_CODER in ToolParserManager.list_registered()


@pytest.mark.parametrize(
    "text", [CALL, f"```json\n{CALL}\n```", f"<tools>\n{CALL}\n</tools>", f"<tool_call>{CALL}"]
)
def test_calls_are_read_whole_and_streamed(text: str) -> None:
    found = parser().extract_tool_calls(f"I look.\n{text}<|im_end|>", request())
    assert found.tools_called and found.content == "I look."
    calls = [(one.function.name, json.loads(one.function.arguments)) for one in found.tool_calls]
    assert calls == WANTED and found.tool_calls[0].id
    assert streamed(f"I look.\n{text}") == ("I look.", WANTED)
    assert parser().extract_tool_calls(text, request()).content is None


@pytest.mark.parametrize("text", ["```sql\nSELECT 1\n```", '{"answer": [1, 2]}', "a < b `", "{ {"])
def test_other_replies_stay_words_to_the_last_letter(text: str) -> None:
    found = parser().extract_tool_calls(text, request())
    assert (found.tools_called, found.content) == (False, text)
    assert streamed(text) == (text, [])
    assert streamed(CALL, tool_choice="none") == (CALL, [])


def test_a_reply_that_is_cut_off_loses_no_words() -> None:
    text = 'I look: {"name": "exec'
    made, asked = parser(), request(max_tokens=len(text))
    words = ""
    for end in range(1, len(text) + 1):
        ids = list(range(1, end + 1))
        delta = made.extract_tool_calls_streaming(
            text[: end - 1], text[:end], text[end - 1], ids[:-1], ids, ids[-1:], asked
        )
        words += (delta.content or "") if delta else ""
    assert words == text


def test_tags_that_are_special_tokens_are_left_in_the_text() -> None:
    assert parser().adjust_request(request()).skip_special_tokens is False
    assert parser().adjust_request(request(tool_choice="none")).skip_special_tokens is True
