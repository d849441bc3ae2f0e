"""The reward `verifiers`: the taskset's own."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator, Mapping, Sequence

from harness import Attempt, EnvironmentFault, Task, Verdict
from harness.records import JSON
from harness_verifiers.process import LOAD_S, Answer, Source, kept
from harness_verifiers.tasks import DATA

SCORE_S = 60.0
"""Seconds for one score, once the taskset is loaded."""
TRIES = 2


class Verifiers:
    """The weighted sum of the taskset's rewards, for the trace that its own harness would have recorded.

    The trace is rebuilt call by call from the attempt, begins with the taskset's own prompt, and
    ends where a stop condition of the taskset would have ended it. An exception, hang or crash
    there leaves the attempt unscored.
    """

    version = "verifiers/1"

    async def score(self, task: Task, attempt: Attempt) -> Verdict:
        data = task.data[DATA]
        state = None if attempt.state is None else attempt.state["state"]
        tools = [dict(one) for one in data["tools"]]
        asked = {
            "do": "score",
            "number": data["number"],
            "hash": data["hash"],
            "state": state,
            "tools": tools,
        }
        asked["calls"] = list(calls_of(attempt))
        for left in reversed(range(TRIES)):
            try:
                process = await asyncio.to_thread(kept, Source.of(data))
                await process.ready(LOAD_S)
                said = await process.ask(SCORE_S, asked)
                break
            except EnvironmentFault as error:
                if not left:
                    return Verdict(None, str(error))
        return verdict_of(said)

    def refuses(self, task: Task) -> str:
        """Refuse tasks of another task set."""
        return (
            ""
            if DATA in task.data
            else f"{task.id} is no task of a taskset of verifiers; use another reward"
        )


def verdict_of(said: Answer) -> Verdict:
    """Return the weighted sum unchanged; `reward.range` bounds it."""
    value, rewards = said["value"], said["rewards"]
    parts = {name: score * weight for name, (score, weight) in rewards.items()}
    terms = " + ".join(
        f"{weight:g} * {name} {score:g}" for name, (score, weight) in rewards.items()
    )
    ended = "" if said["stopped"] == "agent_completed" else f"; ended by {said['stopped']}"
    if not math.isfinite(value):
        return Verdict(None, f"{terms} = {value}, which is not finite{ended}")
    return Verdict(value, f"{terms}{ended}", parts)


def calls_of(attempt: Attempt) -> Iterator[Mapping[str, JSON]]:
    """Yield the parts of a trace: each call's messages since the previous one, and its reply."""
    transitions = attempt.transitions
    if not transitions:
        yield _call(
            "", "", "stop", None, [], {"role": "assistant", "content": attempt.answer or ""}
        )
    known = 0
    for index, one in enumerate(transitions):
        before = [] if index == 0 else [_message(message) for message in one.messages[known:]]
        after = (
            transitions[index + 1].messages[len(one.messages) :]
            if index + 1 < len(transitions)
            else ()
        )
        said = after[0] if after and after[0].get("role") == "assistant" else {}
        reply = {
            "role": "assistant",
            "content": one.response_text or None,
            "tool_calls": _calls(said) or None,
        }
        tokens = None
        if one.prompt_tokens is not None and one.response_tokens is not None:
            tokens = [one.prompt_tokens, one.response_tokens]
        yield _call(one.response_id, one.model, one.finish_reason, tokens, before, reply)
        known = len(one.messages) + (1 if said else 0)


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
    text = (
        content
        if isinstance(content, str)
        else json.dumps(content, ensure_ascii=False)
        if content
        else ""
    )
    made = {"role": message["role"], "content": text}
    if message["role"] == "tool":
        return {**made, "tool_call_id": message["tool_call_id"]}
    return (
        {**made, "tool_calls": _calls(message) or None} if message["role"] == "assistant" else made
    )


def _calls(message: Mapping[str, JSON]) -> list[Mapping[str, JSON]]:
    found = message.get("tool_calls")
    made: list[Mapping[str, JSON]] = []
    for one in found if isinstance(found, list | tuple) else []:
        if isinstance(one, Mapping) and isinstance(function := one["function"], Mapping):
            made.append(
                {"id": one["id"], "name": function["name"], "arguments": function["arguments"]}
            )
    return made
