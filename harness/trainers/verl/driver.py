"""The process in which verl runs: `python -m harness.trainers.verl.driver DATA_DIR`.

Composes `verl-settings.yaml` over verl's defaults and leaves the whole as `verl.yaml` beside it.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType


def main() -> None:
    """Run verl's own V1 task runner on a composed configuration."""
    from harness.rollout.processes import die_with_parent

    die_with_parent(signal.SIGTERM)

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)  # Ray's exit handlers stop what it started

    signal.signal(signal.SIGTERM, leave)

    import yaml
    from omegaconf import OmegaConf
    from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    from harness.trainers.verl.compose import compose

    data_dir = Path(sys.argv[1])
    config = compose(yaml.safe_load((data_dir / "verl-settings.yaml").read_text(encoding="utf-8")))
    OmegaConf.save(config, data_dir / "verl.yaml", resolve=True)
    validate_config(config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    run_ppo(config, task_runner_class=TaskRunnerV1)


if __name__ == "__main__":
    main()
