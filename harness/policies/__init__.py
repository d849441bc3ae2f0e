"""Policies: the bundled seed policy, local folders and Hugging Face ids, all by name."""

from __future__ import annotations

import os
from pathlib import Path

from harness.errors import ConfigError

BUNDLED = {"pocket-sql": Path(__file__).parent / "pocket_sql" / "model"}

SPIDER_SQL = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "harness" / "policies" / "spider-sql"
"""Where `spider-sql` is made: not shipped, one command away."""


def resolve(name_or_path: str) -> str:
    """What to load a policy from.

    Args:
        name_or_path: `pocket-sql` (bundled), `spider-sql` (made on this machine), a local folder, or a Hugging
            Face id.

    Returns:
        A folder's path for the first three; a Hugging Face id as it is.

    Raises:
        ConfigError: `spider-sql` has not been made yet.
    """
    if name_or_path in BUNDLED:
        return str(BUNDLED[name_or_path])
    if name_or_path == "spider-sql":
        if not (SPIDER_SQL / "manifest.json").is_file():
            raise ConfigError(
                f"policy 'spider-sql' is not in {SPIDER_SQL}: make it with "
                "`python -m harness.policies.spider_sql.pretrain --device cuda` (7 minutes on an H200)"
            )
        return str(SPIDER_SQL)
    path = Path(name_or_path).expanduser()
    return str(path) if path.exists() else name_or_path
