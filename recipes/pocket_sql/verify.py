"""Checks the shipped policy: `python -m recipes.pocket_sql.verify [DIR] [--data]`.

Compares every file's hash with `manifest.json`. `--data` also makes the first training data again and compares
hashes (half a minute): drafts always, and checks and repairs where SQLite has the version that they were made
with, since they show averages whose last digit another version rounds otherwise.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

from harness.policies import resolve
from recipes.finetune.rows import HASHED_BLOCKS, make_block, start_worker
from recipes.pocket_sql.samples import PocketExamples, drafts_digest

MODEL = Path(resolve("pocket-sql"))


def damaged(folder: Path = MODEL) -> list[str]:
    """What is wrong with the files of a policy's folder, one line each."""
    manifest = read_manifest(folder)
    problems = []
    for name, digest in manifest["sha256"].items():
        path = folder / name
        if not path.is_file():
            problems.append(f"{name}: missing")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            problems.append(f"{name}: another hash than in manifest.json")
    unknown = {path.name for path in folder.iterdir()} - {*manifest["sha256"], "manifest.json"}
    return problems + [f"{name}: not in manifest.json" for name in sorted(unknown)]


def changed_data(folder: Path = MODEL) -> list[str]:
    """What differs between the first training data, made again, and the manifest."""
    manifest = read_manifest(folder)
    settings = manifest["settings"]
    habits = settings.get("habits", not settings.get("no_habits"))
    problems = []
    if drafts_digest(manifest["seed"], habits) != manifest["training"]["drafts_sha256"]:
        problems.append("training data: other drafts than in manifest.json")
    if manifest["versions"]["sqlite"] != sqlite3.sqlite_version:
        return problems
    start_worker(str(folder / "tokenizer.json"))
    source = PocketExamples(manifest["seed"], habits)
    digest = hashlib.sha256()
    for number in range(HASHED_BLOCKS):
        digest.update(make_block(source, number).tokens)
    if digest.hexdigest() != manifest["training"]["data_sha256"]:
        problems.append("training data: another hash than in manifest.json")
    return problems


def read_manifest(folder: Path = MODEL) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return manifest


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=MODEL)
    parser.add_argument(
        "--data", action="store_true", help="make the first training data again, too"
    )
    arguments = parser.parse_args()
    problems = damaged(arguments.folder)
    if arguments.data:
        problems += changed_data(arguments.folder)
    sys.stdout.write("\n".join(problems or ["ok"]) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
