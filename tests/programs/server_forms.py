"""Forms in which real servers answer, each as a change to a chat completion in OpenAI's form.

`docs/gateway.md` lists the same forms by the same names.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from harness.mock_model.completion import Reply

Completion = dict[str, Any]
TOOL = "query_database"
COUNT = "SELECT count(*) FROM singer"
ANSWER = "There are 3 singers."
CALLED = {"sql": COUNT}


def completion(message: Mapping[str, Any], reason: str) -> Completion:
    """Return a chat completion as OpenAI's API documents it."""
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "scripted",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "refusal": None, **message},
                "logprobs": None,
                "finish_reason": reason,
            }
        ],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
    }


def plain(number: int) -> Completion:
    """Return the replies of the episode: a tool call, then the answer."""
    if number == 0:
        function = {"name": TOOL, "arguments": json.dumps(CALLED)}
        call = {"id": "call_1", "type": "function", "function": function}
        return completion({"content": None, "tool_calls": [call]}, "tool_calls")
    return completion({"content": ANSWER}, "stop")


@dataclass(frozen=True)
class Form:
    """One form.

    Attributes:
        name: As `docs/gateway.md` has it.
        change: Takes a reply of the episode, by number, and returns what the server sends instead.
        outcome: Outcome of the attempt; `ok` comes with the answer and the tool call of the plain form.
        fault: Fault of the tool call, where it has one.
        calls: Tool calls carried out.
        detail: What the attempt's `detail` holds.
    """

    name: str
    change: Callable[[Completion, int], Any]
    outcome: str = "ok"
    fault: str = ""
    calls: int = 1
    answer: str = ANSWER
    detail: str = ""

    def reply(self, number: int) -> Reply:
        """Return what the server sends to the request of this number of a rollout."""
        changed = self.change(deepcopy(plain(number)), number)
        if isinstance(changed, Reply):
            return changed
        return Reply(raw=changed if isinstance(changed, bytes) else json.dumps(changed).encode())


def _top(**fields: Any) -> Callable[[Completion, int], Completion]:
    return lambda answer, _: {**answer, **fields}


def _without(*names: str) -> Callable[[Completion, int], Completion]:
    return lambda answer, _: {key: value for key, value in answer.items() if key not in names}


def _of_call(change: Callable[[Any], Any]) -> Callable[[Completion, int], Completion]:
    """Change the tool call of the first reply."""

    def changed(answer: Completion, number: int) -> Completion:
        if number == 0:
            message = answer["choices"][0]["message"]
            message["tool_calls"] = [change(call) for call in message["tool_calls"]]
        return answer

    return changed


def _arguments(value: Any) -> Callable[[Completion, int], Completion]:
    return _of_call(lambda call: {**call, "function": {"name": TOOL, "arguments": value}})


def _of_message(**fields: Any) -> Callable[[Completion, int], Completion]:
    def changed(answer: Completion, number: int) -> Completion:
        answer["choices"][0]["message"].update(fields)
        return answer

    return changed


def _before_words(text: str) -> Callable[[Completion, int], Completion]:
    """Put a text before the answer in words."""

    def changed(answer: Completion, number: int) -> Completion:
        message = answer["choices"][0]["message"]
        if message["content"]:
            message["content"] = text + message["content"]
        return answer

    return changed


def _of_choice(**fields: Any) -> Callable[[Completion, int], Completion]:
    def changed(answer: Completion, number: int) -> Completion:
        answer["choices"][0].update(fields)
        return answer

    return changed


def _single_call(answer: Completion, number: int) -> Completion:
    if number == 0:
        message = answer["choices"][0]["message"]
        message["tool_calls"] = message["tool_calls"][0]
    return answer


def _function_call(answer: Completion, number: int) -> Completion:
    if number == 0:
        message = answer["choices"][0]["message"]
        message["function_call"] = message.pop("tool_calls")[0]["function"]
    return answer


def _no_content(answer: Completion, number: int) -> Completion:
    if number == 0:
        del answer["choices"][0]["message"]["content"]
    return answer


def _elsewhere(answer: Completion, number: int) -> Completion:
    message = answer["choices"][0]["message"]
    if number > 0:
        message.update(content=None, reasoning_content=ANSWER)
    return answer


def _bad_text(answer: Completion, number: int) -> bytes:
    answer["choices"][0]["logprobs"] = {"content": [{"token": "TOKEN", "logprob": -1.0}]}
    token = (b"\xc3", b"\\ud83d")[number % 2]
    return json.dumps(answer).encode().replace(b"TOKEN", token)


def _error(**error: Any) -> Callable[[Completion, int], Any]:
    body = json.dumps({"error": error}).encode()
    return lambda *_: Reply(raw=body)


def _refused(status: int, message: str) -> Callable[[Completion, int], Any]:
    return lambda answer, number: Reply.failure(status, message) if number else answer


def _limited_once() -> Callable[[Completion, int], Any]:
    """Refuse the first request for the rate, and answer from then on."""
    return lambda _, number: (
        Reply.failure(429, "slow down", retry_after="0")
        if number == 0
        else Form("", lambda answer, _: answer).reply(number - 1)
    )


def _leave(answer: Completion, _: int) -> Completion:
    return answer


WITHOUT_TYPE = _of_call(lambda call: {key: call[key] for key in ("id", "function")})
WITHOUT_ID = _of_call(lambda call: {key: call[key] for key in ("type", "function")})
FLAT = _of_call(lambda call: {"name": TOOL, "arguments": CALLED})
UNKNOWN_TYPE = _of_call(lambda call: {**call, "type": "custom"})

FORMS = (
    Form("OpenAI's form", _leave),
    Form("answers numbered from 0", lambda answer, number: {**answer, "id": number}),
    Form("one id for all answers", _top(id="chatcmpl-1")),
    Form("`id` missing", _without("id")),
    Form("`id` null", _top(id=None)),
    Form("`id` empty", _top(id="")),
    Form("no field but `choices`", _without("id", "object", "created", "model", "usage")),
    Form("tool call without `type`", WITHOUT_TYPE),
    Form("tool call with `type` null", _of_call(lambda call: {**call, "type": None})),
    Form("tool call without `id`", WITHOUT_ID),
    Form("tool call with `id` null", _of_call(lambda call: {**call, "id": None})),
    Form("tool call with `id` empty", _of_call(lambda call: {**call, "id": ""})),
    Form("tool call with a number as `id`", _of_call(lambda call: {**call, "id": 0})),
    Form("tool call without `function` around name and arguments", FLAT),
    Form("one tool call instead of a list", _single_call),
    Form("`function_call` instead of `tool_calls`", _function_call),
    Form("arguments as an object", _arguments(CALLED)),
    Form("arguments as JSON text in JSON text", _arguments(json.dumps(json.dumps(CALLED)))),
    Form("arguments empty", _arguments(""), fault="bad_arguments"),
    Form("arguments null", _arguments(None), fault="bad_arguments"),
    Form("arguments as an empty list", _arguments([]), fault="bad_arguments"),
    Form("arguments that are no JSON", _arguments('{"sql": '), fault="bad_arguments"),
    Form("tool calls with the reason `stop`", _of_choice(finish_reason="stop")),
    Form("the reason of the end null", _of_choice(finish_reason=None)),
    Form("the reason `eos_token` or `end_turn`", _of_choice(finish_reason="end_turn")),
    Form("`content` missing with tool calls", _no_content),
    Form(
        "`tool_calls` null or an empty list",
        lambda answer, number: (
            answer if number == 0 else _of_message(tool_calls=[])(answer, number)
        ),
    ),
    Form("`usage` missing", _without("usage")),
    Form(
        "`usage` with texts or nulls", _top(usage={"prompt_tokens": "9", "completion_tokens": None})
    ),
    Form("`reasoning_content` next to the content", _of_message(reasoning_content="Let me think.")),
    Form("all text in `reasoning_content`", _elsewhere, answer=""),
    Form(
        "another `model` than was asked",
        lambda answer, number: {**answer, "model": f"other-{number}"},
    ),
    Form("texts that are no UTF-8", _bad_text),
    Form("rate limit with `Retry-After`", _limited_once()),
    Form("tool call of another `type`", UNKNOWN_TYPE, "endpoint_error", calls=0, detail="'custom'"),
    Form(
        "tool call that is no object",
        _of_call(lambda call: "call"),
        "endpoint_error",
        calls=0,
        detail="must be an object",
    ),
    Form(
        "error with status 200",
        _error(message="CUDA out of memory"),
        "endpoint_error",
        calls=0,
        detail="CUDA out of memory",
    ),
    Form(
        "error with status 200 and a code",
        _error(message="no capacity", code=503),
        "endpoint_error",
        calls=0,
        detail="no capacity",
    ),
    Form(
        "error of length with status 200",
        _error(message="maximum context length is 8"),
        "prompt_too_long",
        calls=0,
        detail="length is 8",
    ),
    Form(
        "reasoning in tags before the answer",
        _before_words("<think>Three, I think. Two?</think>\n\n"),
    ),
    Form(
        "the closing tag of reasoning alone",
        _before_words("Three, I think. Two?</think>\n"),
    ),
    Form("no choices", _top(choices=[]), "endpoint_error", calls=0, detail="bad_answer"),
    Form(
        "SGLang's words for a prompt too long",
        _refused(400, "The input (9 tokens) is longer than the model's context length (8 tokens)."),
        "prompt_too_long",
        detail="longer than the model's context length",
    ),
    Form(
        "vLLM V1's words for a prompt too long",
        _refused(
            400, "The decoder prompt (length 9) is longer than the maximum model length of 8."
        ),
        "prompt_too_long",
        detail="longer than the maximum model length",
    ),
    Form(
        "a prompt too long with status 413, 422 or 500",
        _refused(422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8"),
        "prompt_too_long",
        detail="must be <= 8",
    ),
    Form(
        "a refusal of another kind",
        _refused(400, "no such role"),
        "agent_error",
        detail="no such role",
    ),
)
"""All forms. Those with the outcome `ok` are accepted; the others are refused alike for every agent."""
