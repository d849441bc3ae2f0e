"""What an answer may hold: anything else is a typed failure, never a crash later on."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from harness.gateway.answers import Answer, StreamedAnswer, read_answer
from harness.gateway.failures import Refusal

GOOD: dict[str, Any] = {
    "id": "x",
    "prompt_token_ids": [5, 6],
    "choices": [
        {
            "message": {"content": "yes"},
            "finish_reason": "stop",
            "token_ids": [7, 8],
            "logprobs": {"content": [{"logprob": -0.5}, {"logprob": 0}]},
        }
    ],
    "usage": {"prompt_tokens": 2, "completion_tokens": 2},
}
WRONG_IDS: list[Any] = ["ab", [1.5, -2], [True, {}], [1, -1], [1, 2**31], {"0": 1}]
WRONG_LOGPROBS: list[Any] = [
    5.0,
    float("nan"),
    float("-inf"),
    float("inf"),
    "-1",
    None,
    True,
    1e-3,
    -9999.0,  # vLLM, for minus infinity
]
WRONG_TEXT: list[Any] = [[{"type": "text", "text": "yes"}], {"text": "yes"}, 5, False]
WRONG_USAGE: list[Any] = [
    "many",
    [1],
    {"prompt_tokens": "2"},
    {"prompt_tokens": 2.0},
    {"prompt_tokens": -1},
]


def read(
    change: dict[str, Any], choice: dict[str, Any], stream: bool, token_ids: bool = True
) -> Answer:
    completion = deepcopy(GOOD) | change
    completion["choices"][0] |= choice
    if not stream:
        return read_answer(completion, token_ids=token_ids)
    completion["choices"][0]["delta"] = completion["choices"][0].pop("message")
    streamed = StreamedAnswer(token_ids=token_ids)
    streamed.feed(completion)
    return streamed.answer()


def refused(
    change: dict[str, Any], choice: dict[str, Any], stream: bool, token_ids: bool = True
) -> str:
    with pytest.raises(Refusal) as caught:
        read(change, choice, stream, token_ids)
    assert caught.value.code == "bad_answer" and "\n" not in caught.value.detail
    return caught.value.detail


@pytest.mark.parametrize("stream", [False, True])
def test_a_good_answer_is_read(stream: bool) -> None:
    answer = read({}, {}, stream)
    assert (answer.prompt_ids, answer.response_ids, answer.logprobs) == (
        (5, 6),
        (7, 8),
        (-0.5, 0.0),
    )
    assert (answer.text, answer.finish_reason, answer.prompt_tokens) == ("yes", "stop", 2)
    assert read({}, {"logprobs": {"content": [{"logprob": -9998.5}, {"logprob": 1e-7}]}}, stream)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ids", WRONG_IDS)
def test_token_ids_that_are_none_are_refused(stream: bool, ids: Any) -> None:
    assert "token_ids must" in refused({}, {"token_ids": ids}, stream)
    assert "prompt_token_ids must" in refused({"prompt_token_ids": ids}, {}, stream)


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_has_ids_all_of_them_whole(stream: bool) -> None:
    assert "prompt_token_ids is empty" in refused({"prompt_token_ids": []}, {}, stream)
    assert "not None" in refused({"prompt_token_ids": [None, "7"]}, {}, stream)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("value", WRONG_LOGPROBS)
def test_log_probabilities_that_are_none_are_refused(stream: bool, value: Any) -> None:
    refused({}, {"logprobs": {"content": [{"logprob": -0.5}, {"logprob": value}]}}, stream)


@pytest.mark.parametrize("token_ids", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text", WRONG_TEXT)
def test_only_text_is_content(stream: bool, token_ids: bool, text: Any) -> None:
    assert "content must be text" in refused({}, {"message": {"content": text}}, stream, token_ids)
    assert "finish_reason must be text" in refused({}, {"finish_reason": text}, stream, token_ids)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("usage", WRONG_USAGE)
def test_a_count_that_is_none_is_left_out(stream: bool, usage: Any) -> None:
    answer = read({"usage": usage}, {}, stream, token_ids=False)
    assert (answer.text, answer.prompt_tokens, answer.response_tokens) == ("yes", None, None)


def test_what_follows_the_end_of_a_stream_must_fit_too() -> None:
    streamed = StreamedAnswer(token_ids=True)
    first = deepcopy(GOOD)
    first["choices"][0]["delta"] = first["choices"][0].pop("message")
    streamed.feed(first)
    with pytest.raises(Refusal):
        streamed.feed({"id": "x", "choices": [{"delta": {"content": "more"}, "token_ids": [9]}]})
