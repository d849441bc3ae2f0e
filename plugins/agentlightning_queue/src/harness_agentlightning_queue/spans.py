"""Transport of an attempt through agentlightning's store: a span per call, one for the whole.

The spans carry the exact records as JSON in addition to readable attributes, so that
agentlightning's dashboard and `harness dev` show them and the trainer gets what the gateway
recorded, token for token.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from agentlightning.types import Span, TraceStatus

from harness.records import Attempt, attempt_from

CALL_SPAN = "harness.call"
ATTEMPT_SPAN = "harness.attempt"
PAYLOAD = "harness.record"


def to_spans(attempt: Attempt) -> list[Span]:
    """The spans of an attempt, in the order of its calls; the attempt's own span comes last."""

    def span(
        sequence: int, name: str, attributes: dict[str, Any], start: float, end: float, error: str
    ) -> Span:
        status = (
            TraceStatus(status_code="ERROR", description=error)
            if error
            else TraceStatus(status_code="OK")
        )
        return Span.from_attributes(
            attributes=attributes,
            rollout_id=attempt.rollout_id,
            attempt_id=attempt.attempt_id,
            sequence_id=sequence,
            name=name,
            start_time=start,
            end_time=end,
            status=status,
        )

    spans: list[Span] = []
    for call in attempt.transitions:
        attributes: dict[str, object] = {
            "harness.role": call.role,
            "gen_ai.request.model": call.model,
            "gen_ai.usage.input_tokens": call.prompt_tokens or 0,
            "gen_ai.usage.output_tokens": call.response_tokens or 0,
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.content": call.response_text,
            PAYLOAD: json.dumps(asdict(call), ensure_ascii=False),
        }
        for position, message in enumerate(call.messages):
            attributes[f"gen_ai.prompt.{position}.role"] = str(message.get("role"))
            attributes[f"gen_ai.prompt.{position}.content"] = str(message.get("content"))
        end = call.started_s + call.latency_s
        spans.append(span(len(spans) + 1, CALL_SPAN, attributes, call.started_s, end, ""))
    for failure in attempt.failures:
        attributes = {
            "harness.role": failure.role,
            "http.response.status_code": failure.status or 0,
        }
        end = failure.started_s + failure.latency_s
        spans.append(
            span(
                len(spans) + 1,
                CALL_SPAN,
                attributes,
                failure.started_s,
                end,
                failure.detail or "failed",
            )
        )
    # Each transition has a span of its own; the whole could be too large for one.
    whole = {key: value for key, value in asdict(attempt).items() if key != "transitions"}
    attributes = {
        "harness.outcome": attempt.outcome,
        "harness.answer": attempt.answer or "",
        PAYLOAD: json.dumps(whole, ensure_ascii=False),
    }
    error = "" if attempt.outcome == "ok" else f"{attempt.outcome}: {attempt.detail}"
    end = attempt.started_s + attempt.elapsed_s
    spans.append(span(len(spans) + 1, ATTEMPT_SPAN, attributes, attempt.started_s, end, error))
    return spans


def from_spans(spans: Sequence[Span]) -> Attempt | None:
    """Return the attempt with these spans, or None if its last span was never written.

    A request that was sent again leaves its spans twice: each call counts once.
    """
    whole: dict[str, Any] | None = None
    calls: dict[int, dict[str, Any]] = {}
    for span in spans:
        payload = span.attributes.get(PAYLOAD)
        if not isinstance(payload, str):
            continue
        if span.name == ATTEMPT_SPAN:
            whole = whole or json.loads(payload)
        elif span.name == CALL_SPAN:
            call = json.loads(payload)
            calls.setdefault(call["index"], call)
    if whole is None:
        return None
    # A store may return spans in any order.
    transitions = [calls[index] for index in sorted(calls)]
    return attempt_from({**whole, "transitions": transitions})
