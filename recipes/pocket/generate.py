"""Generates the bundled files of task set `pocket`: `python -m recipes.pocket.generate [--check]`.

Everything follows from `domains.txt`, `pools.txt`, the templates and the seed, so that a second run writes
the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random

from harness_sql.tasks.pocket import DATA
from recipes.pocket.domain import Domain, parse_domains, parse_pools
from recipes.pocket.questions import draw_unique
from recipes.pocket.world import build_world

SEED = 1
QUESTIONS = {"train": 92, "val": 40}
"""Questions a database."""

HERE = Path(__file__).parent


def bundled_domains() -> list[tuple[str, Domain]]:
    """(split, domain) of every bundled database."""
    pools = parse_pools((HERE / "pools.txt").read_text(encoding="utf-8"))
    return parse_domains((HERE / "domains.txt").read_text(encoding="utf-8"), pools)


def generate(seed: int = SEED) -> dict[str, str]:
    """The text of every bundled file by its name."""
    questions: dict[str, list[str]] = {split: [] for split in QUESTIONS}
    scripts: dict[str, str] = {}
    counts: dict[str, Counter[str]] = {split: Counter() for split in QUESTIONS}
    for split, domain in bundled_domains():
        rng = Random(f"pocket/{seed}/{domain.db_id}")
        world = build_world(domain, rng)
        scripts[domain.db_id] = world.script
        for number, item in enumerate(draw_unique(world, rng, QUESTIONS[split])):
            row = {
                "id": f"{domain.db_id}/{number:03d}",
                "db_id": domain.db_id,
                "question": item.question,
                "query": item.gold,
                "difficulty": item.difficulty,
                "kind": item.kind,
                "slip": next(iter(item.mistakes), ""),
            }
            questions[split].append(json.dumps(row, ensure_ascii=False))
            counts[split].update((item.difficulty, "questions"))
        counts[split]["databases"] += 1
        world.close()
    return files_of(seed, questions, scripts, counts)


def files_of(
    seed: int,
    questions: Mapping[str, Sequence[str]],
    scripts: Mapping[str, str],
    counts: Mapping[str, Mapping[str, int]],
) -> dict[str, str]:
    """The text of every file of a bundled task set: questions by split, databases, and a manifest with their hashes."""
    files = {f"{split}.jsonl": "\n".join(lines) + "\n" for split, lines in questions.items()}
    files["databases.json"] = json.dumps(scripts, indent=0, ensure_ascii=False) + "\n"
    manifest = {
        "seed": seed,
        "licence": "Apache-2.0",
        "counts": {split: dict(sorted(counter.items())) for split, counter in counts.items()},
        "sha256": {
            name: hashlib.sha256(text.encode()).hexdigest() for name, text in sorted(files.items())
        },
    }
    files["manifest.json"] = json.dumps(manifest, indent=2) + "\n"
    return files


def main(generate: Callable[[], dict[str, str]], folder: Path, description: str | None) -> int:
    """The command: writes the bundled files, or says whether they are what would be written."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--check",
        action="store_true",
        help="only say whether the bundled files are what this writes",
    )
    arguments = parser.parse_args()
    files = generate()
    if not arguments.check:
        folder.mkdir(exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    changed = [
        name for name, text in files.items() if (folder / name).read_text(encoding="utf-8") != text
    ]
    sys.stdout.write(f"differs: {', '.join(changed)}\n" if changed else files["manifest.json"])
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main(generate, DATA, __doc__))
