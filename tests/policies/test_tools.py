"""Tool calls of the CPU's policy server: what reaches the chat template, and what is read out of a reply."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from openai.types.chat import ChatCompletionMessageFunctionToolCall  # noqa: E402

from harness.config import load_config  # noqa: E402
from harness.policies import parser_of, resolve, tool_parser  # noqa: E402
from harness.util.tool_calls import QWEN_CODER  # noqa: E402
from harness_policy_server.decoder import Generation  # noqa: E402
from harness_policy_server.hermes import read_calls  # noqa: E402
from harness_policy_server.server import PolicyServer  # noqa: E402

TOOLS: Any = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
USER: Any = [{"role": "user", "content": "1 + 2?"}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": "ü"}}\n</tool_call>'


class Scripted(PolicyServer):
    """Serves a real tokenizer and chat template; what it samples is scripted."""

    text = ""

    async def sample(
        self, prompt_ids: list[int], limit: int, sampling: dict[str, Any]
    ) -> Generation:
        ids = [*self.tokenizer.encode(self.text), self.tokenizer.eos_token_id]
        return Generation(
            prompt_ids, limit, token_ids=ids, logprobs=[-1.0] * len(ids), finish_reason="stop"
        )


@contextlib.asynccontextmanager
async def serving(server: PolicyServer) -> AsyncIterator[openai.AsyncOpenAI]:
    address = await server.launch()
    try:
        async with openai.AsyncOpenAI(
            base_url=f"http://{address}/v1", api_key="none", max_retries=0
        ) as client:
            yield client
    finally:
        server.decoder.stop()
        assert server._serving is not None
        server._serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await server._serving


@pytest_asyncio.fixture
async def scripted(policy: Path) -> AsyncIterator[tuple[Scripted, openai.AsyncOpenAI]]:
    server = Scripted(str(policy), slots=2, response_length=64, max_length=2048)
    async with serving(server) as client:
        yield server, client


@pytest.mark.slow
async def test_calls_are_read_and_their_tokens_are_those_sampled(
    scripted: tuple[Scripted, openai.AsyncOpenAI],
) -> None:
    server, client = scripted
    server.text = f"Let me see.\n{CALL}\n{CALL}"
    asked: Any = {"model": "m", "messages": USER, "tools": TOOLS, "tool_choice": "auto"}
    more: Any = {"extra_body": {"return_token_ids": True}, "logprobs": True}
    whole = (await client.chat.completions.create(**asked, **more)).choices[0]
    chunks = [chunk async for chunk in await client.chat.completions.create(**asked, stream=True)]
    (streamed,) = (choice for chunk in chunks for choice in chunk.choices)
    assert [call.index for call in streamed.delta.tool_calls] == [0, 1]
    for reason, message in (
        (whole.finish_reason, whole.message),
        (streamed.finish_reason, streamed.delta),
    ):
        assert (reason, message.content) == ("tool_calls", "Let me see.\n")
        functions = [(call.function.name, call.function.arguments) for call in message.tool_calls]
        assert functions == [("add", '{"a": "ü"}')] * 2
        assert len({call.id for call in message.tool_calls}) == 2
    sampled = [*server.tokenizer.encode(server.text), server.tokenizer.eos_token_id]
    assert whole.model_extra is not None and whole.model_extra["token_ids"] == sampled
    assert whole.logprobs is not None and len(whole.logprobs.content or ()) == len(sampled)


async def test_tools_calls_and_results_reach_the_template(
    scripted: tuple[Scripted, openai.AsyncOpenAI],
) -> None:
    server, client = scripted
    server.text = CALL
    first = (
        (await client.chat.completions.create(model="m", messages=USER, tools=TOOLS))
        .choices[0]
        .message
    )
    message = first.model_dump(include={"role", "content", "tool_calls"})
    assert message["content"] is None
    messages = [
        *USER,
        message,
        {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "3"},
    ]
    server.text = "3"
    second = await client.chat.completions.create(
        model="m", messages=messages, tools=TOOLS, extra_body={"return_token_ids": True}
    )
    assert second.choices[0].message.content == "3" and second.choices[0].finish_reason == "stop"
    assert second.model_extra is not None
    prompt = server.tokenizer.decode(second.model_extra["prompt_token_ids"])
    assert prompt == (
        f"<|im_start|>system\n{json.dumps(TOOLS[0])}\n<|im_end|>\n<|im_start|>user\n1 + 2?<|im_end|>\n"
        f"<|im_start|>assistant\n{CALL}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


async def test_the_template_is_told_what_a_request_says(
    scripted: tuple[Scripted, openai.AsyncOpenAI],
) -> None:
    server, client = scripted
    server.text = "3"
    ends = []
    for options in ({}, {"chat_template_kwargs": {"enable_thinking": False}}):
        more: Any = {"extra_body": {"return_token_ids": True, **options}}
        answer = await client.chat.completions.create(model="m", messages=USER, **more)
        assert answer.model_extra is not None
        ends.append(
            server.tokenizer.decode(answer.model_extra["prompt_token_ids"]).rpartition(
                "assistant\n"
            )[2]
        )
    assert ends == ["", "<think>\n\n</think>\n\n"]


async def test_a_request_that_offers_no_tools_gets_text(
    scripted: tuple[Scripted, openai.AsyncOpenAI],
) -> None:
    server, client = scripted
    server.text = CALL
    for none in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        answer = await client.chat.completions.create(model="m", messages=USER, **none)  # type: ignore[call-overload]
        assert (
            answer.choices[0].message.tool_calls is None
            and answer.choices[0].finish_reason == "stop"
        )
    with pytest.raises(openai.BadRequestError, match="must be auto or none"):
        await client.chat.completions.create(
            model="m", messages=USER, tools=TOOLS, tool_choice="required"
        )


async def test_a_template_that_knows_no_tools_serves_on() -> None:
    async with serving(
        PolicyServer(resolve("pocket-sql"), slots=2, response_length=4, max_length=256)
    ) as client:
        messages: Any = [*USER, {"role": "assistant", "content": None, "tool_calls": []}]
        answer = await client.chat.completions.create(
            model="m", messages=messages, tools=TOOLS, max_tokens=4
        )
        assert answer.usage is not None and answer.usage.completion_tokens <= 4


@pytest.mark.parametrize(
    "text",
    [
        "no call",
        '<tool_call>{"name": "add"}</tool_call>',
        '<tool_call>{"name": "add", "arguments": "a"}</tool_call>',
        '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
        '<tool_call>["add"]</tool_call>',
        f'{CALL}<tool_call>{{"name": "add", "argum',
        "<tool_call></tool_call>",
        "</tool_call>",
    ],
)
def test_malformed_calls_stay_text(text: str) -> None:
    assert read_calls(text, [1]) == (text, [])


def test_a_call_that_the_end_closes_counts_and_ids_are_those_of_the_tokens() -> None:
    text, (call,) = read_calls('Well. <tool_call>{"name": "add", "arguments": {}}', [1, 2])
    assert (text, call["function"]) == ("Well. ", {"name": "add", "arguments": "{}"})
    assert read_calls(CALL, [1, 2]) == read_calls(CALL, [1, 2]) != read_calls(CALL, [1, 3])


def test_the_parser_follows_the_template_then_the_name(policy: Path, tmp_path: Path) -> None:
    assert tool_parser(str(policy)) == "hermes"
    (tmp_path / "tokenizer_config.json").write_text(
        '{"added_tokens_decoder": {"1": {"content": "<|python_tag|>"}}}'
    )
    assert tool_parser(str(tmp_path)) == "llama3_json"
    assert tool_parser("meta-llama/Llama-3.1-8B-Instruct") == "llama3_json"
    assert tool_parser("Qwen/Qwen2.5-1.5B-Instruct") == "hermes"


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen2.5-Coder-0.5B-Instruct", "qwen2.5-coder-1.5b", "Qwen/Qwen2.5-Coder-7B"]
)
def test_qwen_coder_is_known_by_its_id(name: str) -> None:
    assert tool_parser(name) == QWEN_CODER


def test_qwen_coder_is_known_by_what_its_folder_and_its_run_say(tmp_path: Path) -> None:
    def policy_in(folder: Path, **manifest: Any) -> str:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "chat_template.jinja").write_text("<tool_call>")
        if manifest:
            (folder / "manifest.json").write_text(json.dumps(manifest))
        return str(folder)

    hub = "models--Qwen--Qwen2.5-Coder-0.5B-Instruct/snapshots/0123"
    coder = policy_in(tmp_path / "own", source={"file": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"})
    found = [
        policy_in(tmp_path / "qwen2.5-coder-0.5b"),
        policy_in(tmp_path / hub),
        policy_in(tmp_path / "mine", policy="qwen2.5-coder-1.5b"),
        policy_in(tmp_path / "theirs", source={"model": "Qwen/Qwen2.5-Coder-0.5B-Instruct"}),
        coder,
    ]
    for number, first in enumerate((coder, "Qwen/Qwen2.5-Coder-0.5B-Instruct")):
        run = tmp_path / f"run{number}"
        found.append(policy_in(run / "checkpoints" / "global_step_2" / "hf"))
        (run / "run.json").write_text(json.dumps({"config": {"policy": {"path": first}}}))
    assert {tool_parser(folder) for folder in found} == {QWEN_CODER}

    others = [
        policy_in(tmp_path / "qwen2.5-coder-study" / "smollm2", policy="smollm2-135m"),
        policy_in(tmp_path / "broken"),
        policy_in(tmp_path / "run9" / "hf"),
    ]
    (tmp_path / "broken" / "manifest.json").write_text("{")
    (tmp_path / "run9" / "run.json").write_text('{"config": {"policy": {"path": "smollm2-135m"}}}')
    assert {tool_parser(folder) for folder in others} == {"hermes"}


def test_a_run_states_the_parser_that_its_device_has() -> None:
    option = "verl.actor_rollout_ref.rollout.engine_kwargs.vllm.tool_call_parser=qwen3_xml"
    tools = load_config("cpu", None, [], agent="langgraph_sql_idiomatic")
    named = load_config("cpu", None, [option], agent="langgraph_sql_idiomatic")
    text = load_config("cpu", None, [], agent="reference_sql")
    coder, llama = "Qwen/Qwen2.5-Coder-0.5B-Instruct", "meta-llama/Llama-3.2-1B"
    assert parser_of(tools, coder, "cpu") == parser_of(tools, coder, "cuda") == QWEN_CODER
    assert (parser_of(tools, llama, "cpu"), parser_of(tools, llama, "cuda")) == (
        "hermes",
        "llama3_json",
    )
    assert parser_of(named, coder, "cuda") == "qwen3_xml"
    assert parser_of(text, coder, "cuda") == ""


@pytest.mark.slow
async def test_the_server_reads_qwen_coders_form_and_leaves_the_tokens_as_sampled(
    policy: Path,
) -> None:
    server = Scripted(
        str(policy), slots=2, response_length=64, max_length=2048, parser="qwen2_5_coder"
    )
    call = '{"name": "add", "arguments": {"a": "ü"}}'
    async with serving(server) as client:
        asked: Any = {"model": "m", "messages": USER, "tools": TOOLS, "logprobs": True}
        more: Any = {"extra_body": {"return_token_ids": True}}
        for text in (f"Well.\n```json\n{call}\n```", f"Well. {call}", f"Well.\n{CALL}"):
            server.text = text
            choice = (await client.chat.completions.create(**asked, **more)).choices[0]
            assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Well.")
            assert choice.message.tool_calls is not None
            (read,) = choice.message.tool_calls
            assert isinstance(read, ChatCompletionMessageFunctionToolCall)
            assert (read.function.name, read.function.arguments) == ("add", '{"a": "ü"}')
            sampled = [*server.tokenizer.encode(text), server.tokenizer.eos_token_id]
            assert choice.model_extra is not None and choice.model_extra["token_ids"] == sampled
        server.text = '{"name": "Ada", "arguments": {"age": 3}}'
        choice = (await client.chat.completions.create(**asked, **more)).choices[0]
        assert (choice.finish_reason, choice.message.content) == ("stop", server.text)


async def test_the_server_takes_its_parser_from_the_policys_name(
    policy: Path, tmp_path: Path
) -> None:
    named = tmp_path / "Qwen2.5-Coder-0.5B-Instruct"
    named.symlink_to(policy)
    for folder, parser in ((policy, "hermes"), (named, QWEN_CODER)):
        server = Scripted(str(folder), slots=1, response_length=8, max_length=64)
        server.decoder.stop()
        assert server.parser == parser
