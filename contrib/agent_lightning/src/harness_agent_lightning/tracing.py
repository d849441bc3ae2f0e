"""Replace Agent Lightning's tracer: collect emitted rewards, and roles that LangChain names."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from agentlightning.emitter import get_reward_value
from agentlightning.tracer.base import get_active_tracer, set_active_tracer
from agentlightning.tracer.dummy import DummyTracer
from agentlightning.types import Attributes, SpanCoreFields, TraceStatus

from harness.contracts.toolbox import Report

REPORT: ContextVar[tuple[Report, Sequence[str]]] = ContextVar("harness_lit_report")
"""The report and the role names of the current task's or thread's rollout."""


class ReportingTracer(DummyTracer):
    """Keep no spans, since the gateway sees every call, and add emitted rewards to the report."""

    def create_span(
        self,
        name: str,
        attributes: Attributes | None = None,
        timestamp: float | None = None,
        status: TraceStatus | None = None,
    ) -> SpanCoreFields:
        span = super().create_span(name, attributes, timestamp, status)
        reward = get_reward_value(span)
        found = REPORT.get(None)
        if reward is not None and found is not None:
            found[0].reward = float(reward)
        return span

    def get_last_trace(self) -> list[Any]:
        return []

    def get_langchain_handler(self, tags: list[str] | None = None) -> Any:
        """Return a handler that names the role of each call, or None outside of a rollout."""
        from harness_agent_lightning.langchain import RoleHandler

        found = REPORT.get(None)
        return None if found is None else RoleHandler(*found)


TRACER = ReportingTracer()


def activate() -> None:
    """Make the tracer the process's active one, so that `agl.emit_reward` finds it."""
    if get_active_tracer() is None:
        set_active_tracer(TRACER)
