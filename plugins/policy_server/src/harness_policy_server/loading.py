"""Load a policy's weights, all of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.errors import ConfigError


def load_policy(path: str | Path, *, trust_remote_code: bool = False) -> Any:
    """Return a policy in fp32, ready to answer.

    transformers fills weights that a folder lacks with random numbers and only logs it.

    Args:
        path: A local folder or a Hugging Face id.

    Raises:
        ConfigError: Weights are missing; the message names the first.
    """
    import torch
    from transformers import AutoModelForCausalLM

    found: Any = AutoModelForCausalLM.from_pretrained(
        path,
        dtype=torch.float32,
        trust_remote_code=trust_remote_code,
        output_loading_info=True,
    )
    model, loaded = found
    refuse_missing(path, loaded["missing_keys"])
    return model.eval()


def refuse_incomplete(folder: Path, auto_class: Any, **options: Any) -> None:
    """Refuse a policy that lacks weights before something else loads it.

    The architecture and the tensors stay on torch's meta device, so that only names are read. They
    are matched as in loading, for example those of tied embeddings, which files hold once.

    Args:
        auto_class: The class of transformers that will load the policy.
        options: Further arguments of its `from_pretrained`.

    Raises:
        ConfigError: Weights are missing; the message names the first.
    """
    _, loaded = auto_class.from_pretrained(
        folder, device_map="meta", output_loading_info=True, **options
    )
    refuse_missing(folder, loaded["missing_keys"])


def refuse_missing(source: str | Path, missing: Iterable[str]) -> None:
    """Refuse weights that lack some of their architecture's.

    Raises:
        ConfigError: `missing` is not empty.
    """
    if absent := sorted(missing):
        raise ConfigError(
            f"{source} lacks {len(absent)} of the weights of its architecture, such as "
            f"{absent[0]}. Restore the others, or name a complete policy"
        )
