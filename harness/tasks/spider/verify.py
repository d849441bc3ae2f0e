"""Checks a prepared folder against its manifest."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from harness.environments.sql.databases import content_hash
from harness.errors import TaskSetError
from harness.tasks.spider.layout import DEV_500, MANIFEST, PARTS


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a prepared folder; None for one that something else prepared.

    Raises:
        TaskSetError: There is a manifest and it cannot be read.
    """
    file = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise TaskSetError(f"{file} is damaged: {error}. Run `harness data spider SOURCE` again") from error
    return manifest


def check_prepared(folder: Path) -> None:
    """Raises a TaskSetError that says what to do unless the folder holds Spider's Parquet files."""
    needed = [part.parquet for part in PARTS if part.name != "train_others"]
    lacking = [name for name in needed if not (folder / name).is_file()]
    if not lacking:
        return
    state = "is not there" if not folder.exists() else f"lacks {', '.join(lacking)}"
    raise TaskSetError(
        f"Spider's prepared folder {folder} {state}. Run: harness data spider SOURCE --out {folder}, "
        "or set VERL_SPIDER_DATA_DIR to a prepared folder"
    )


def verify(folder: Path) -> dict[str, Any]:
    """Compares every file with the manifest.

    Returns:
        `folder`, `ok`, `problems` (one line each), `files` (how many were checked) and `manifest` (whether there
        is one to check against).

    Raises:
        TaskSetError: The folder is not prepared.
    """
    check_prepared(folder)
    manifest = read_manifest(folder)
    problems: list[str] = []
    expected: dict[str, str] = {}
    if manifest is not None:
        expected = {**manifest["parquet"], **manifest["databases"]}
    for name, digest in expected.items():
        file = folder / name
        try:
            if content_hash(str(file)) != digest:
                problems.append(f"{name} has changed")
        except OSError:
            problems.append(f"{name} is missing")
    if manifest is None and not (folder / "database").is_dir():
        problems.append("there is no folder database/")
    return {
        "folder": str(folder),
        "ok": not problems,
        "problems": problems,
        "files": len(expected),
        "manifest": manifest is not None,
    }


def questions_hash(folder: Path) -> dict[str, str]:
    """SHA-256 of each Parquet file that is there."""
    return {
        part.parquet: hashlib.sha256((folder / part.parquet).read_bytes()).hexdigest()
        for part in (*PARTS, DEV_500)
        if (folder / part.parquet).is_file()
    }
