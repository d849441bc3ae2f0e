"""OpenAI's Responses API and Anthropic's Messages API, as far as chat completions express them."""

from __future__ import annotations

from harness.contracts.hookspecs import ProtocolSpec, hookimpl

HARNESS_API = 1


@hookimpl
def harness_protocols() -> list[ProtocolSpec]:
    return [
        ProtocolSpec(
            "responses", "harness_gateway_protocols.responses:Responses", "OpenAI's Responses API"
        ),
        ProtocolSpec(
            "messages", "harness_gateway_protocols.messages:Messages", "Anthropic's Messages API"
        ),
    ]
