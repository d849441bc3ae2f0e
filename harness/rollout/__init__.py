"""Rollouts: one run of an agent on one problem, from the queue to an `Attempt`.

`client` enqueues rollouts and collects their attempts; `worker` is the process of a plugin's agent;
`pool` keeps workers alive; `host` is the agent's view of the harness. The queue itself is a
plugin's (`queue_plugin`).
"""
