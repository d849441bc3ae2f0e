"""Qwen2.5-Coder's tool calls for vLLM 0.24: its `ToolParser` around `harness.util.tool_calls`.

Parsing reads text alone: token ids and log-probabilities of an answer are those that were sampled.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from vllm.entrypoints.openai.engine.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolCall,
)
from vllm.tool_parsers.abstract_tool_parser import ToolParser

from harness.util.tool_calls import read_calls, read_partly


class QwenCoderToolParser(ToolParser):
    """Reads calls as JSON in text, a code fence, or `<tool_call>` or `<tools>` tags."""

    def adjust_request(self, request: Any) -> Any:
        """Keep special tokens in the text of a request: some tokenizers have the tags as such."""
        request = super().adjust_request(request)
        if request.tools and request.tool_choice != "none":
            request.skip_special_tokens = False
        return request

    def extract_tool_calls(self, model_output: str, request: Any) -> ExtractedToolCallInformation:
        """Return the words and the calls of a whole reply."""
        words, calls = read_calls(self._without_end(model_output), _names(request))
        made = []
        for call in calls:
            function = FunctionCall(name=call.name, arguments=call.arguments)
            made.append(ToolCall(function=function))
        return ExtractedToolCallInformation(
            tools_called=bool(calls),
            tool_calls=made,
            content=words or None if calls else model_output,
        )

    def extract_tool_calls_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
        request: Any,
    ) -> DeltaMessage | None:
        """Return what is new: words that can be no part of a call, and calls that are complete."""
        ended = self._has_ended(current_token_ids, request)
        text = self._without_end(current_text) if ended else current_text
        words, calls, settled = read_partly(text, _names(request), ended=ended)
        sent_words = getattr(self, "_sent_words", 0)
        content = words[sent_words:settled]
        self._sent_words = max(sent_words, settled)
        sent_calls = len(self.prev_tool_call_arr)
        deltas = []
        for index, call in enumerate(calls[sent_calls:], sent_calls):
            # The serving layer compares both lists to see what of a call has not been sent.
            self.prev_tool_call_arr.append(
                {"name": call.name, "arguments": json.loads(call.arguments)}
            )
            self.streamed_args_for_tool.append(call.arguments)
            function = DeltaFunctionCall(name=call.name, arguments=call.arguments)
            made = ToolCall(function=FunctionCall(name=call.name, arguments=call.arguments))
            deltas.append(
                DeltaToolCall(index=index, type="function", id=made.id, function=function)
            )
        if not content and not deltas:
            return None
        return DeltaMessage(content=content or None, tool_calls=deltas)

    def _has_ended(self, token_ids: Sequence[int], request: Any) -> bool:
        """Return whether a reply is whole: by its last token, or because it may not be longer."""
        limit = request.max_completion_tokens or request.max_tokens
        ends = {self.model_tokenizer.eos_token_id, *(request.stop_token_ids or ())}
        return bool(token_ids) and (
            token_ids[-1] in ends or (limit is not None and len(token_ids) >= limit)
        )

    def _without_end(self, text: str) -> str:
        """Return a reply without the token that ends its turn."""
        end = getattr(self.model_tokenizer, "eos_token", None)
        return text.removesuffix(end) if isinstance(end, str) and end else text


def _names(request: Any) -> tuple[str, ...]:
    """Return the names of the tools that a request lets the policy call."""
    if request.tool_choice == "none":
        return ()
    names = []
    for tool in request.tools or ():
        # A tool of another kind than a function, such as a search of the server, has none.
        if getattr(tool, "function", None):
            names.append(tool.function.name)
    return tuple(names)
