"""Policies: the bundled seed policy, local folders and Hugging Face ids, all by name."""

from __future__ import annotations

from pathlib import Path

from harness.config import cache_dir
from harness.errors import ConfigError

BUNDLED = {
    "pocket-sql": Path(__file__).parent / "pocket_sql" / "model",
    "medical-tools": Path(__file__).parent / "medical_tools" / "model",
}

MADE = {
    "spider-sql": "python -m recipes.spider_sql.pretrain --device cuda` (7 minutes on an H200)",
}
"""Not shipped, one command of a checkout away."""


def made_dir(name: str) -> Path:
    """Where a policy of `MADE` is made."""
    return cache_dir() / "policies" / name


def resolve(name_or_path: str) -> str:
    """What to load a policy from.

    Args:
        name_or_path: One of `BUNDLED`, one of `MADE` (made on this machine), a local folder, or a Hugging Face id.

    Returns:
        A folder's path for the first three; a Hugging Face id as it is.

    Raises:
        ConfigError: One of `MADE` has not been made yet.
    """
    if name_or_path in BUNDLED:
        return str(BUNDLED[name_or_path])
    if name_or_path in MADE:
        made = made_dir(name_or_path)
        if not (made / "manifest.json").is_file():
            raise ConfigError(
                f"policy {name_or_path!r} is not in {made}: make it in a checkout of the repository with "
                f"`{MADE[name_or_path]}"
            )
        return str(made)
    path = Path(name_or_path).expanduser()
    return str(path) if path.exists() else name_or_path


def tool_parser(model: str) -> str:
    """What vLLM calls the form in which a policy writes tool calls: Llama's JSON, or Hermes, of Qwen and others.

    Args:
        model: A local folder, whose chat template says so, or a Hugging Face id.
    """
    files = [Path(model) / name for name in ("chat_template.jinja", "tokenizer_config.json")]
    told = "".join(file.read_text(encoding="utf-8") for file in files if file.is_file())
    llama = "<|python_tag|>" in told if told else "llama" in model.lower()
    return "llama3_json" if llama and "<tool_call>" not in told else "hermes"
