"""verl's replay buffer with a short poll; it also loads harness's parts into verl's task runner.

`trainer.v1.sampler.custom_sampler` names it: the one user class that the task runner loads before
it starts the policy servers. So it also registers the CPU rollout and the batches of `batches.py`.
TransferQueue has no way to wait for a tag, so the buffer must poll; verl polls every 2 s, most of a
step of a small policy.

The wait for rollouts is also timed here, as `timing_s/sample`. verl's own `timing_s/gen` lasts
until its servers have released their memory to the trainer.
"""

from __future__ import annotations

import os
import time
from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from harness_verl import early_rows, saving, trackers  # noqa: F401  (two for their effect)

POLL_S = 0.05

saving.install(PPOTrainer)

if os.environ.get("VERL_PLATFORM") == "cpu":
    from harness_verl import cpu_rollout

    cpu_rollout.register()


class _Timed:
    """Polls more often than verl's buffer, times each batch, and raises where verl lost rollouts.

    Its `sampler_kwargs` name the run's `batching` and `credit`, whether it `merges` calls, the
    `threshold` of a rollout that rejection fine-tuning trains on, and whether gold answers are
    `taught` instead of rollouts.
    """

    def __init__(self, *args: Any, sampler_kwargs: Any, **kwargs: Any) -> None:
        super().__init__(*args, sampler_kwargs=sampler_kwargs, **kwargs)  # type: ignore[call-arg]
        self.poll_interval = POLL_S
        if sampler_kwargs["batching"] == "by_rollout":
            from harness_verl import batches

            batches.install(
                shared=sampler_kwargs["credit"] == "shared",
                merges=sampler_kwargs["merges"],
                threshold=sampler_kwargs["threshold"],
                taught=sampler_kwargs.get("taught", False),
            )

    def sample(self, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        began = time.perf_counter()
        batch, metrics = super().sample(*args, **kwargs)  # type: ignore[misc]
        if lost := self.failure_keys[batch.partition_id]:  # type: ignore[attr-defined]
            raise RuntimeError(
                f"verl lost rollouts of {len(lost)} tasks: see `Error in _run_prompt` above"
            )
        return batch, {**metrics, "timing_s/sample": time.perf_counter() - began}


class PromptReplayBuffer(_Timed, ReplayBuffer):
    """For the synchronous trainer."""


class PromptReplayBufferAsync(_Timed, ReplayBufferAsync):
    """For verl's `colocate_async` and `separate_async` trainers."""
