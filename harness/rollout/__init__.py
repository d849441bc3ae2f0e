"""Rollouts: one run of an agent on one problem, from the queue to an `Attempt`.

`client` enqueues rollouts in agentlightning's store and collects their attempts; `worker` is the process
that runs a plugin's agent; `pool` keeps workers alive; `host` is what the agent is given.
"""

from harness.rollout.lightning import without_litellm

without_litellm()  # before any module of this package imports agentlightning
