"""Generates the bundled files of task set `medical`: `python -m recipes.medical.generate [--check]`.

Everything follows from the seed. The bytes of a Parquet file also depend on the version of pyarrow, which the
manifest names; its rows do not.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
from collections import Counter
from functools import cache
from random import Random
from typing import Any

from harness_sql.tasks.medical import DATA, SPLITS
from recipes.medical.questions import Item, items_of
from recipes.medical.world import NOTES, World, build_world

SEED = 1
SIZES = {"train": (66, 52), "val": (18, 15)}
"""Diseases and makers of each split."""
PER = {"drug": 3, "disease": 5, "maker": 4}
"""Questions about each entity."""
NOTICE = "All names, drugs, diseases and numbers are invented. Nothing here is medical knowledge or advice."


@cache
def bundled() -> tuple[World, dict[str, list[tuple[str, Item]]]]:
    """The database, and of every split its questions with their ids."""
    rng = Random(f"medical/{SEED}")
    world = build_world(rng, SIZES)
    drawn = {split: list(items_of(world, world.parts[split], rng, PER)) for split in SPLITS}
    return world, {
        split: [(f"{split}-{number:04d}", item) for number, item in enumerate(items)]
        for split, items in drawn.items()
    }


def rows_of(items: list[tuple[str, Item]]) -> list[dict[str, Any]]:
    """Rows of the Parquet file."""
    return [
        {
            "id": key,
            "question": item.question,
            "answer": item.answer,
            "facts": list(item.facts),
            "cluster": item.entity,
            "difficulty": item.difficulty,
            "kind": item.kind,
        }
        for key, item in items
    ]


def generate() -> dict[str, bytes]:
    """The content of every bundled file by its name."""
    import pyarrow
    import pyarrow.parquet

    world, questions = bundled()
    database = {"script": world.script, "notes": NOTES}
    files = {"database.json": (json.dumps(database, indent=0, ensure_ascii=False) + "\n").encode()}
    for split, items in questions.items():
        sink = io.BytesIO()
        pyarrow.parquet.write_table(
            pyarrow.Table.from_pylist(rows_of(items)), sink, compression="zstd"
        )
        files[f"{split}.parquet"] = sink.getvalue()
    manifest = {
        "seed": SEED,
        "licence": "Apache-2.0",
        "notice": NOTICE,
        "counts": {
            split: {"questions": len(items), "entities": len({item.entity for _, item in items})}
            | dict(sorted(Counter(item.difficulty for _, item in items).items()))
            for split, items in questions.items()
        },
        "pyarrow": pyarrow.__version__,
        "sha256": {
            name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())
        },
    }
    return files | {"manifest.json": (json.dumps(manifest, indent=2) + "\n").encode()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check",
        action="store_true",
        help="only say whether the bundled files are what this writes",
    )
    arguments = parser.parse_args()
    files = generate()
    if not arguments.check:
        DATA.mkdir(exist_ok=True)
        for name, content in files.items():
            (DATA / name).write_bytes(content)
    changed = [name for name, content in files.items() if (DATA / name).read_bytes() != content]
    sys.stdout.write(
        f"differs: {', '.join(changed)}\n" if changed else files["manifest.json"].decode()
    )
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
