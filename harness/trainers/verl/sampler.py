"""verl's replay buffer with a short poll; loading it also registers the CPU rollout in verl's task runner.

Named by `trainer.v1.sampler.custom_sampler`: the one user class that the task runner loads before it
starts the policy servers. TransferQueue has no way to wait for a tag, so the buffer must ask; verl asks
every 2 s, most of a step of a small policy.
"""

from __future__ import annotations

import os
from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

POLL_S = 0.05

if os.environ.get("VERL_PLATFORM") == "cpu":
    from harness.trainers.verl import cpu_rollout

    cpu_rollout.register()


class PromptReplayBuffer(ReplayBuffer):
    """For the synchronous trainer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.poll_interval = POLL_S


class PromptReplayBufferAsync(ReplayBufferAsync):
    """For verl's `colocate_async` and `separate_async` trainers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.poll_interval = POLL_S
