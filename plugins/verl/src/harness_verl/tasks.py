"""verl's task runner under a name that a process can use without importing verl."""

from __future__ import annotations

from pathlib import Path
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


def checked(config: Any) -> Any:
    """Return a complete configuration of verl after verl's own validation.

    Raises:
        ConfigError: The policy's folder lacks weights.
    """
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    validate_config(
        config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config)
    )
    _refuse_incomplete_policy(config.actor_rollout_ref.model)
    return config


def _refuse_incomplete_policy(model: Any) -> None:
    """Refuse a folder that lacks weights, which transformers would fill with random numbers.

    The check is here, because this process has imported transformers, which takes seconds, and no
    worker has started yet.

    Args:
        model: The section of verl's configuration.
    """
    from omegaconf import OmegaConf
    from transformers import AutoConfig
    from verl.utils.model import get_hf_auto_model_class, update_model_config

    from harness_policy_server.loading import refuse_incomplete

    folder = Path(model.path)
    if not folder.is_dir():  # nodes of a cluster download it themselves
        return
    if model.get("hf_config_path"):  # the architecture is described elsewhere
        return
    trusted = model.trust_remote_code
    try:
        architecture = AutoConfig.from_pretrained(folder, trust_remote_code=trusted)
    except ValueError:  # a type of model that a library of the workers registers
        return
    options: Any = OmegaConf.to_container(model.override_config, resolve=True)
    overrides = {**options.get("model_config", options)}  # Megatron's are one level deeper
    # The workers register the attention of packed rows; no weight depends on it.
    overrides.pop("attn_implementation", None)
    update_model_config(architecture, overrides)
    auto_class = get_hf_auto_model_class(architecture)
    refuse_incomplete(folder, auto_class, config=architecture, trust_remote_code=trusted)
