"""Export spans of rollouts to an OpenTelemetry collector if the standard variables name one.

`OTEL_EXPORTER_OTLP_ENDPOINT` and the other variables of OpenTelemetry's SDK set the target, the
protocol and the headers; its own exporter sends the spans from a thread. An unreachable collector
costs spans, but no rollout. An attempt is a trace; its calls are child spans of the attempt's.
The exact record stays in agentlightning's store.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from harness_agentlightning_queue.spans import ATTEMPT_SPAN, PAYLOAD

if TYPE_CHECKING:
    from agentlightning.types import Span
    from opentelemetry.sdk.trace.export import BatchSpanProcessor


@cache
def _processor() -> BatchSpanProcessor | None:
    """The exporter of spans; None if no collector is named."""
    variable = os.environ.get
    named = variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or variable(
        "OTEL_EXPORTER_OTLP_ENDPOINT"
    )
    if (
        not named
        or variable("OTEL_SDK_DISABLED", "").lower() == "true"
        or variable("OTEL_TRACES_EXPORTER") == "none"
    ):
        return None
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    protocol = variable("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or variable(
        "OTEL_EXPORTER_OTLP_PROTOCOL"
    )
    kind = "grpc" if protocol == "grpc" else "http"
    (exporter,) = entry_points(group="opentelemetry_traces_exporter", name=f"otlp_proto_{kind}")
    return BatchSpanProcessor(exporter.load()())


def exported(spans: Sequence[Span]) -> None:
    """Pass spans of attempts to the exporter, if there is one."""
    if (processor := _processor()) is None:
        return
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

    def context(attempt: str, part: str = "") -> SpanContext:
        # Hashes, so that a repeated export has the same ids.
        trace = hashlib.sha256(attempt.encode()).digest()
        span = hashlib.sha256(f"{attempt}/{part}".encode()).digest()
        sampled = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(
            int.from_bytes(trace[:16], "big"), int.from_bytes(span[:8], "big"), False, sampled
        )

    resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "harness")})
    for written in spans:
        attempt, whole = f"{written.rollout_id}/{written.attempt_id}", written.name == ATTEMPT_SPAN
        own = {"harness.rollout_id": written.rollout_id, "harness.attempt_id": written.attempt_id}
        span = ReadableSpan(
            written.name,
            context(attempt, "" if whole else str(written.sequence_id)),
            None if whole else context(attempt),
            resource,
            {name: value for name, value in written.attributes.items() if name != PAYLOAD} | own,
            status=Status(StatusCode[written.status.status_code], written.status.description),
            start_time=int(written.start_time * 1e9),
            end_time=int(written.end_time * 1e9),
        )
        processor.on_end(span)


def flush() -> None:
    """Send waiting spans, within the time limits of the SDK."""
    if _processor.cache_info().currsize and (processor := _processor()) is not None:
        processor.force_flush()
