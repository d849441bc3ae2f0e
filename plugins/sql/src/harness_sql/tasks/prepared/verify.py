"""Check a prepared folder against its manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, TypedDict

from harness.errors import TaskSetError
from harness.util.parsing import file_hash
from harness_sql.sqlite.databases import content_hash
from harness_sql.tasks.prepared.layout import MANIFEST, Layout


def read_manifest(folder: Path, layout: Layout) -> dict[str, Any] | None:
    """Return the manifest of a prepared folder; None if it was not prepared by harness.

    Raises:
        TaskSetError: The manifest cannot be read.
    """
    file = folder / MANIFEST
    try:
        manifest: dict[str, object] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise TaskSetError(
            f"{file} is damaged: {error}. Run `{layout.command} SOURCE` again"
        ) from error
    return manifest


def check_prepared(folder: Path, layout: Layout) -> None:
    """Refuse a folder with none of the task set's Parquet files, or prepared for another task set.

    Raises:
        TaskSetError: The folder does not fit. The message has a remedy.
    """
    set_ = f", or set {layout.variable} to a prepared folder" if layout.variable else ""
    run = f"Run: {layout.command} SOURCE --out {folder}{set_}"
    if not any((folder / name).is_file() for name in layout.parquets):
        state = (
            "is not there" if not folder.exists() else f"has none of {', '.join(layout.parquets)}"
        )
        raise TaskSetError(f"{layout.title}'s prepared folder {folder} {state}. {run}")
    found = (read_manifest(folder, layout) or {}).get("task_set", layout.name)
    if found != layout.name:
        raise TaskSetError(
            f"{folder} is prepared for task set {found!r}, not for {layout.name!r}. {run}"
        )


class Verified(TypedDict):
    """The result of comparing a prepared folder with its manifest."""

    folder: str
    ok: bool
    problems: Annotated[list[str], "a line each"]
    files: Annotated[int, "how many were checked"]
    manifest: Annotated[bool, "whether there is one to check against"]


def verify(folder: Path, layout: Layout) -> Verified:
    """Compare every file with the manifest.

    Raises:
        TaskSetError: The folder is not prepared.
    """
    check_prepared(folder, layout)
    manifest = read_manifest(folder, layout)
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
    if manifest is None and not (folder / layout.folders[0]).is_dir():
        problems.append(f"there is no folder {layout.folders[0]}/")
    return {
        "folder": str(folder),
        "ok": not problems,
        "problems": problems,
        "files": len(expected),
        "manifest": manifest is not None,
    }


def questions_hash(folder: Path, layout: Layout) -> dict[str, str]:
    """Return the SHA-256 of each existing Parquet file of questions."""
    hashes: dict[str, str] = {}
    for name in layout.parquets:
        # A source may lack a part of the task set, and its file is then not written.
        if (folder / name).is_file():
            hashes[name] = file_hash(folder / name)
    return hashes
