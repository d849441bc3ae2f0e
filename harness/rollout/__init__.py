"""Rollouts: one run of an agent on one problem, from the queue to an `Attempt`.

`client` enqueues rollouts in agentlightning's store and collects their attempts; `worker` is the
process of a plugin's agent; `pool` keeps workers alive; `host` is the agent's view of the harness.
"""

from harness.rollout.lightning import without_litellm

without_litellm()  # before any module of this package imports agentlightning
