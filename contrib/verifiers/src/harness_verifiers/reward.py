"""The reward `verifiers`: the taskset's own."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator, Mapping, Sequence

from harness import Attempt, EnvironmentFault, Task, Verdict
from harness.records import JSON
from harness_verifiers.process import LOAD_S, Answer, Source, shared_process
from harness_verifiers.tasks import DATA

SCORE_S = 60.0
"""Seconds for one score, once the taskset is loaded."""
TRIES = 2


class Verifiers:
    """The weighted sum of the taskset's rewards, for a trace like its own harness's.

    The trace is rebuilt call by call from the attempt, begins with the taskset's own prompt, and
    ends where a stop condition of the taskset would have ended it. An exception, hang or crash
    there leaves the attempt unscored.
    """

    version = "verifiers/1"

    async def score(self, task: Task, attempt: Attempt) -> Verdict:
        data = task.data[DATA]
        state = None if attempt.state is None else attempt.state["state"]
        tools = [dict(tool) for tool in data["tools"]]
        request = {
            "do": "score",
            "number": data["number"],
            "hash": data["hash"],
            "state": state,
            "tools": tools,
        }
        request["calls"] = list(calls_of(attempt))
        for tries_left in reversed(range(TRIES)):
            try:
                process = await asyncio.to_thread(shared_process, Source.of(data))
                await process.ready(LOAD_S)
                answer = await process.ask(SCORE_S, request)
                break
            except EnvironmentFault as error:
                if not tries_left:
                    return Verdict(None, str(error))
        return verdict_of(answer)

    def refuses(self, task: Task) -> str:
        """Refuse tasks of another task set."""
        return (
            ""
            if DATA in task.data
            else f"{task.id} is no task of a taskset of verifiers; use another reward"
        )


def verdict_of(answer: Answer) -> Verdict:
    """Return the weighted sum unchanged; `reward.range` bounds it."""
    value, rewards = answer["value"], answer["rewards"]
    parts = {}
    terms = []
    for name, (score, weight) in rewards.items():
        parts[name] = score * weight
        terms.append(f"{weight:g} * {name} {score:g}")
    summed = " + ".join(terms)
    ended = "" if answer["stopped"] == "agent_completed" else f"; ended by {answer['stopped']}"
    if not math.isfinite(value):
        return Verdict(None, f"{summed} = {value}, which is not finite{ended}")
    return Verdict(value, f"{summed}{ended}", parts)


def calls_of(attempt: Attempt) -> Iterator[Mapping[str, JSON]]:
    """Yield the parts of a trace: each call's messages since the previous one, and its reply."""
    transitions = attempt.transitions
    if not transitions:
        yield _call(
            "", "", "stop", None, [], {"role": "assistant", "content": attempt.answer or ""}
        )
    recorded = 0
    for index, call in enumerate(transitions):
        # A call repeats the messages of the calls before it, and only new ones belong to the trace.
        # In which form the agent kept the reply is visible in the next call's messages.
        before: list[Mapping[str, JSON]] = []
        if index:
            before = list(map(_message, call.messages[recorded:]))
        after = (
            transitions[index + 1].messages[len(call.messages) :]
            if index + 1 < len(transitions)
            else ()
        )
        recorded_reply = after[0] if after and after[0].get("role") == "assistant" else {}
        reply = {
            "role": "assistant",
            "content": call.response_text or None,
            "tool_calls": _calls(recorded_reply) or None,
        }
        tokens = None
        if call.prompt_tokens is not None and call.response_tokens is not None:
            tokens = [call.prompt_tokens, call.response_tokens]
        yield _call(call.response_id, call.model, call.finish_reason, tokens, before, reply)
        recorded = len(call.messages) + (1 if recorded_reply else 0)


def _call(
    id: str,
    model: str,
    finish: str | None,
    tokens: Sequence[int] | None,
    before: Sequence[Mapping[str, JSON]],
    reply: Mapping[str, JSON],
) -> Mapping[str, JSON]:
    known = finish if finish in ("stop", "length", "tool_calls") else None
    return {
        "id": id,
        "model": model,
        "finish": known,
        "tokens": tokens,
        "before": before,
        "reply": reply,
    }


def _message(message: Mapping[str, JSON]) -> Mapping[str, JSON]:
    content = message.get("content")
    text = ""
    if isinstance(content, str):
        text = content
    elif content:
        text = json.dumps(content, ensure_ascii=False)
    converted = {"role": message["role"], "content": text}
    if message["role"] == "tool":
        return {**converted, "tool_call_id": message["tool_call_id"]}
    if message["role"] == "assistant":
        return {**converted, "tool_calls": _calls(message) or None}
    return converted


def _calls(message: Mapping[str, JSON]) -> list[Mapping[str, JSON]]:
    calls = message.get("tool_calls")
    converted: list[Mapping[str, JSON]] = []
    for call in calls if isinstance(calls, list | tuple) else []:
        if isinstance(call, Mapping) and isinstance(function := call["function"], Mapping):
            converted.append(
                {"id": call["id"], "name": function["name"], "arguments": function["arguments"]}
            )
    return converted
