"""Policies: the bundled seed policy, local folders and Hugging Face ids, all by name."""

from __future__ import annotations

from pathlib import Path

BUNDLED = {"pocket-sql": Path(__file__).parent / "pocket_sql" / "model"}


def resolve(name_or_path: str) -> str:
    """What to load a policy from.

    Args:
        name_or_path: `pocket-sql` (bundled), a local folder, or a Hugging Face id.

    Returns:
        A folder's path for the first two; a Hugging Face id as it is.
    """
    if name_or_path in BUNDLED:
        return str(BUNDLED[name_or_path])
    path = Path(name_or_path).expanduser()
    return str(path) if path.exists() else name_or_path
