"""Tool calls as Qwen2.5-Coder writes them, and what only looks like one."""

from __future__ import annotations

import json

import pytest

from harness.util.tool_calls import (
    FAILED_STARTS,
    WrittenCall,
    looks_like_call,
    offered,
    read_calls,
    read_partly,
    tools_unused,
)

NAMES = ("execute", "schema")
CALL = '{"name": "execute", "arguments": {"sql": "SELECT 1"}}'
READ = WrittenCall("execute", '{"sql": "SELECT 1"}')


@pytest.mark.parametrize(
    "text",
    [
        CALL,
        f"```json\n{CALL}\n```",
        f"```\n{CALL}\n```",
        f"```tool_call\n{CALL}\n```",
        f"<tool_call>\n{CALL}\n</tool_call>",
        f"<tools>\n{CALL}\n</tools>",
        f"<tools>{CALL}",
        f"[{CALL}]",
        '{"arguments": {"sql": "SELECT 1"}, "name": "execute"}',
        json.dumps({"name": "execute", "arguments": '{"sql": "SELECT 1"}'}),
    ],
)
def test_every_form_of_a_call_is_read(text: str) -> None:
    assert read_calls(text, NAMES) == ("", [READ])
    assert read_calls(f"I look first.\n\n{text}\nThen I answer.", NAMES) == (
        "I look first.",
        [READ],
    )


def test_several_calls_are_read_in_order() -> None:
    second = '{"name": "schema", "arguments": {}}'
    expected = [READ, WrittenCall("schema", "{}")]
    fence = f"```json\n{CALL}\n{second}\n```"
    fences = f"```json\n{CALL}\n```\nand\n```json\n{second}\n```"
    for text in (fence, fences, f"[{CALL}, {second}]", f"{CALL}\n{second}"):
        assert read_calls(text, NAMES) == ("", expected)


def test_line_breaks_and_other_letters_in_arguments_are_kept() -> None:
    text = '{"name": "execute", "arguments": {"sql": "SELECT ü\nFROM t"}}'
    ((call,),) = (read_calls(text, NAMES)[1],)
    assert json.loads(call.arguments) == {"sql": "SELECT ü\nFROM t"}
    assert "ü" in call.arguments


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SELECT name FROM t",
        '{"name": "Ada", "arguments": {"age": 3}}',
        '{"name": "execute", "arguments": {"sql": 1}, "result": [1]}',
        '{"name": "execute"}',
        '{"name": "execute", "parameters": {"sql": "SELECT 1"}}',
        '{"name": "execute", "arguments": ["SELECT 1"]}',
        '{"name": "execute", "arguments": "SELECT 1"}',
        f'{{"calls": [{CALL}]}}',
        f'{{"answer": {CALL}, "why": "as an example"}}',
        f"[{CALL}, 1]",
        "[]",
        '{"name": ["execute"], "arguments": {}}',
        '{"name": "execute", "arguments": {"sql": "SELECT 1"}',
        "[" * 5000,
    ],
)
def test_other_json_is_no_call(text: str) -> None:
    assert read_calls(text, NAMES) == (text, [])


def test_nothing_is_a_call_where_no_tool_is_offered() -> None:
    assert read_calls(CALL, ()) == (CALL, [])
    tools = [{"type": "function", "function": {"name": "execute"}}, {"type": "function"}, 1]
    assert offered({"tools": tools}) == ("execute",)
    assert offered({"tools": tools, "tool_choice": "none"}) == offered({}) == ()


def test_a_text_of_brackets_is_given_up() -> None:
    assert read_calls("{" * FAILED_STARTS + CALL, NAMES)[1] == []
    assert read_calls("{" * (FAILED_STARTS - 1) + CALL, NAMES)[1] == [READ]


@pytest.mark.parametrize(
    "text",
    [
        f"I look first.\n\n```json\n{CALL}\n```\nThen I answer.",
        f"I look first. <tools>\n{CALL}\n</tools>",
        f"[{CALL}, {CALL}] and more",
        f'{{"calls": [{CALL}]}}',
        'The result is {"n": true, "why": "a \\u00fc"}, as `SELECT` has it: a < b.',
        "```sql\nSELECT 1\n```",
        "{" * 3,
    ],
)
def test_words_that_are_settled_early_are_never_taken_back(text: str) -> None:
    whole, calls = read_calls(text, NAMES)
    sent = 0
    for end in range(len(text) + 1):
        words, early, settled = read_partly(text[:end], NAMES, ended=False)
        assert settled <= len(words)
        assert words[:settled] == whole[:settled]
        assert early == calls[: len(early)]
        sent = max(sent, settled)
    assert read_partly(text, NAMES, ended=True) == (whole, calls, len(whole))
    assert sent <= len(whole)


def test_what_looks_like_a_call_is_found_in_words_left() -> None:
    broken = '{"name": "execute", "arguments": {"sql": "SELECT 1"}'
    assert looks_like_call(broken, NAMES)
    assert looks_like_call(f"```json\n{CALL}\n```", NAMES)
    assert looks_like_call("{'name': 'schema'}", NAMES)
    assert looks_like_call("<tools>") and looks_like_call("<tool_call>")
    assert not looks_like_call(CALL)
    assert not looks_like_call('{"name": "Ada"}', NAMES)
    assert not looks_like_call("```sql\nSELECT name FROM execute\n```", NAMES)


def test_a_call_or_two_in_hundreds_of_rollouts_is_no_use_of_tools() -> None:
    assert tools_unused(500, 0) and tools_unused(500, 1)
    assert not tools_unused(500, 5) and not tools_unused(60, 1)
    assert not tools_unused(0, 0)
