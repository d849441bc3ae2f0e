"""The gateway: an HTTP server between agents and the policy's model servers.

It names rollout, attempt and role in its URLs, forces the run's sampling, and records every call
as a transition with the token ids and log-probabilities of the engine that sampled it. See
`docs/gateway.md`.

`server.GatewayServer` runs it in a process of its own; `client.GatewayControl` opens and closes
attempts.
"""
