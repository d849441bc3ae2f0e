"""What a gateway process is started with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Keys, address and bounds of one gateway.

    Attributes:
        key: Bearer key of the agent-facing routes.
        control_key: Bearer key of the control routes.
        host: Address to bind. Loopback unless the run's runners live on other machines.
        port: Port to bind; 0 picks a free one.
        upstream_concurrency: Calls that one upstream may have under way.
        queue_size: Calls that may wait for an upstream; one more is answered 503.
        connect_timeout_s: Time to open a connection to an upstream.
        call_timeout_s: Time for one call, waiting included. An attempt's own deadline may be earlier.
        retry_after_s: What a 503 tells its caller to wait.
        calls_at_once: Calls that one attempt may have under way; one more is answered 429.
        max_body_bytes: Largest request body.
        remembered_ids: Response ids kept to refuse one that comes again.
        remembered_attempts: Closed attempts kept to answer late calls with 410.
        linger_s: How long after its deadline an attempt that nobody closed is kept.
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
    max_body_bytes: int = 64 * 2**20
    remembered_ids: int = 1_000_000
    remembered_attempts: int = 100_000
    linger_s: float = 600.0
