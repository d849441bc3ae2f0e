"""Checks the shipped policy: `python -m harness.policies.pocket_sql.verify [DIR] [--data]`.

Compares every file's hash with `manifest.json`; `--data` also makes the first training data again and compares
its hash (half a minute).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from harness.policies.pocket_sql.data import HASHED_BLOCKS, make_block, start_worker

MODEL = Path(__file__).parent / "model"


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


def data_digest(folder: Path = MODEL) -> str:
    """The hash of the first blocks of training data, made again."""
    manifest = read_manifest(folder)
    habits = not manifest["settings"]["no_habits"]
    start_worker(str(folder / "tokenizer.json"))
    digest = hashlib.sha256()
    for number in range(HASHED_BLOCKS):
        digest.update(make_block((manifest["seed"], number, habits)).tokens)
    return digest.hexdigest()


def read_manifest(folder: Path = MODEL) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return manifest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=MODEL)
    parser.add_argument("--data", action="store_true", help="make the first training data again, too")
    arguments = parser.parse_args()
    problems = damaged(arguments.folder)
    if arguments.data and data_digest(arguments.folder) != read_manifest(arguments.folder)["training"]["data_sha256"]:
        problems.append("training data: another hash than in manifest.json")
    sys.stdout.write("\n".join(problems or ["ok"]) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
