"""Settings of a gateway process."""

from __future__ import annotations

from dataclasses import dataclass

MAX_BODY_BYTES = 64 * 2**20
"""Largest request body of any run."""
SPARE_BODY_BYTES = 2**20
"""Bytes of a body for everything but the prompt; they hold the text of over 200,000 tokens."""
TOKEN_BYTES = 256
"""Bytes of a body per token. English text takes about 4, JSON escapes several times as many."""


def body_bytes(tokens: int) -> int:
    """Return the largest request body for prompts of at most `tokens` tokens."""
    return min(MAX_BODY_BYTES, SPARE_BODY_BYTES + TOKEN_BYTES * tokens)


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Keys, address and bounds of one gateway.

    Attributes:
        key: Bearer key of the agent-facing routes.
        control_key: Bearer key of the control routes.
        host: Address to bind. Loopback unless the run's runners live on other machines.
        port: Port to bind; 0 picks a free one.
        upstream_concurrency: Calls that one upstream may have in progress.
        queue_size: Calls that may wait for an upstream; one more is answered 503.
        connect_timeout_s: Time to open a connection to an upstream.
        call_timeout_s: Time for one call, including waiting. An attempt's deadline may be earlier.
        retry_after_s: Seconds in the `Retry-After` of a 503.
        calls_at_once: Calls that one attempt may have in progress; one more is answered 429.
        max_body_bytes: Largest request body; runs derive it from `sampling.max_prompt_tokens`.
        header_timeout_s: Time for a request's header, from its first byte.
        body_timeout_s: Time for its body after that.
        idle_timeout_s: Time that a connection may be idle, before its first request or between two.
        unread_timeout_s: Time for which an agent may leave waiting data unread.
        max_header_bytes: Largest request line and headers.
        max_headers: Most headers of a request.
        max_connections: Most connections from agents and control clients; fewer if file descriptors
            run out.
        remembered_ids: Response ids kept to refuse a repeated one.
        remembered_attempts: Closed attempts kept to answer late calls with 410.
        linger_s: Time for which an attempt stays open after its deadline.
    """

    key: str
    control_key: str
    host: str = "127.0.0.1"
    port: int = 0
    upstream_concurrency: int = 256
    queue_size: int = 1024
    connect_timeout_s: float = 10.0
    call_timeout_s: float = 600.0
    retry_after_s: int = 1
    calls_at_once: int = 64
    max_body_bytes: int = MAX_BODY_BYTES
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    idle_timeout_s: int = 60
    unread_timeout_s: float = 60.0
    max_header_bytes: int = 64 * 2**10
    max_headers: int = 100
    max_connections: int = 16_384
    remembered_ids: int = 20_000
    remembered_attempts: int = 5_000
    linger_s: float = 600.0

    @property
    def max_calls(self) -> int:
        """Concurrent calls. The other connections are for control routes and refusals."""
        return max(1, self.max_connections * 3 // 4)
