"""verl's task runner under a name that a process can use without importing verl."""

from __future__ import annotations

from typing import Any


class TaskRunner:
    """Checks a configuration as verl does, then runs it as verl's `TaskRunnerV1` does."""

    def run(self, config: object) -> None:
        from harness.util import start_trace

        start_trace.born("verl's task runner")
        from verl.trainer.main_ppo import TaskRunnerV1

        from harness_verl.patched import master_port

        master_port.install()
        TaskRunnerV1.__ray_actor_class__().run(checked(config))


def checked(config: object) -> Any:
    """Return a complete configuration of verl after verl's own validation."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    validate_config(
        config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config)
    )
    return config
