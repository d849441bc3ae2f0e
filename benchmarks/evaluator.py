"""Measure evaluations per second of execution accuracy against a straightforward evaluator.

    python benchmarks/evaluator.py SPIDER [--processes N] [--json]

SPIDER is a folder that `harness data spider` prepared. The straightforward evaluator opens a
connection per query, runs gold every time and tries column permutations until one fits, as many
reward functions do.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import platform
import random
import re
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

Case = tuple[str, str, str]
"""Database file, gold, prediction."""


def straightforward(case: Case) -> bool | None:
    """Judge with one connection a query, no memory, and a permutation search."""
    path, gold, pred = case
    results: list[list[tuple[Any, ...]]] = []
    for sql in (gold, pred):
        sql = re.sub(r"\bdistinct\b", "", sql, flags=re.IGNORECASE)
        with closing(sqlite3.connect(path)) as connection:
            connection.text_factory = lambda raw: raw.decode(errors="ignore")
            try:
                results.append(connection.execute(sql).fetchall())
            except (sqlite3.Error, sqlite3.Warning):
                return None if sql is gold else False
    expected, found = results
    if len(expected) != len(found) or (expected and len(expected[0]) != len(found[0])):
        return False
    ordered = "order by" in gold.lower()
    for permutation in itertools.permutations(range(len(expected[0]) if expected else 0)):
        candidate = [tuple(row[column] for column in permutation) for row in found]
        if candidate == expected if ordered else Counter(candidate) == Counter(expected):
            return True
    return not expected


def ours(case: Case) -> bool | None:
    """Judge with the evaluator as the reward calls it."""
    from harness_sql.sqlite.evaluator import evaluate

    return evaluate(*case).match


def nothing_kept(case: Case) -> bool | None:
    """Judge with the evaluator, without earlier gold results or verdicts."""
    from harness_sql.sqlite.evaluator import forget

    forget()
    return ours(case)


def gold_against_gold(folder: Path) -> list[Case]:
    """Return every runnable question of Spider dev."""
    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(folder / "test_dev.parquet").to_pylist()
    return [(str(folder / row["db_path"]), row["query"], row["query"]) for row in rows]


def mutated(cases: list[Case], seed: int = 0) -> list[Case]:
    """Return predictions with a model's errors: columns moved, conditions changed, clauses lost."""
    chance = random.Random(seed)
    changes: list[Callable[[str], str]] = [
        lambda sql: re.sub(r"(?i)\bdesc\b", "ASC", sql),
        lambda sql: re.sub(r"(?i)\bwhere .*$", "", sql),
        lambda sql: re.sub(r"(?i)\border by .*$", "", sql),
        lambda sql: re.sub(r"\d+", lambda found: str(int(found[0]) + 1), sql),
        lambda sql: re.sub(r"(?i)^select\s+(\w[\w.]*)\s*,\s*(\w[\w.]*)\s", r"SELECT \2, \1 ", sql),
        lambda sql: re.sub(r"(?i)\bmax\b", "min", sql),
        lambda sql: re.sub(r"(?i)^select\s", "SELECT DISTINCT ", sql),
    ]
    return [(path, gold, chance.choice(changes)(gold)) for path, gold, _ in cases]


def fresh(cases: list[Case], label: int) -> list[Case]:
    """Return the same predictions as new texts, so that each must be executed."""
    return [
        (path, gold, f"{pred.rstrip().rstrip(';')} /* {label}.{position} */")
        for position, (path, gold, pred) in enumerate(cases)
    ]


def rate(judge: Callable[[Case], bool | None], cases: list[Case], processes: int) -> float:
    """Return evaluations per second."""
    if processes == 1:
        started = time.perf_counter()
        for case in cases:
            judge(case)
        return len(cases) / (time.perf_counter() - started)
    share = [cases[start::processes] for start in range(processes)]
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        pool.map(_sleep, range(processes), chunksize=1)
        started = time.perf_counter()
        pool.starmap(_run, [(judge, part) for part in share], chunksize=1)
        return len(cases) / (time.perf_counter() - started)


def _sleep(_: int) -> None:
    time.sleep(0.05)


def _run(judge: Callable[[Case], bool | None], cases: list[Case]) -> None:
    for case in cases:
        judge(case)


def measure(folder: Path, processes: int) -> list[dict[str, Any]]:
    """Return one row per set of predictions and way of judging."""
    rows: list[dict[str, Any]] = []
    gold = gold_against_gold(folder)
    for name, cases in (("gold against gold", gold), ("mutated", mutated(gold))):
        base: dict[int, float] = {}
        for way, judge, prepare in (
            ("straightforward", straightforward, None),
            ("ours, nothing kept", nothing_kept, None),
            ("ours, gold kept, new predictions", ours, fresh),
            ("ours, repeated", ours, None),
        ):
            row: dict[str, Any] = {"predictions": name, "evaluator": way}
            for count in sorted({1, processes}):
                best = 0.0
                for label in range(3):
                    todo = (
                        prepare(cases, label + 10 * count)
                        if prepare
                        else cases * (20 if judge is ours else 1)
                    )
                    if judge is ours:  # gold, and for `repeated` the verdicts, are known
                        for case in fresh(cases, -1) if prepare else cases:
                            ours(case)
                    best = max(best, rate(judge, todo, count))
                base.setdefault(count, best)
                row[f"per_s_{count}"] = best
                row[f"ratio_{count}"] = best / base[count]
            rows.append(row)
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spider", type=Path)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = measure(arguments.spider, arguments.processes)
    if arguments.json:
        json.dump(rows, sys.stdout, indent=1)
        return
    counts = sorted({1, arguments.processes})
    heads = [
        head
        for count in counts
        for head in (f"evaluations/s, {count} process{'es' * (count > 1)}", "ratio")
    ]
    sys.stdout.write(f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}\n\n")
    sys.stdout.write("| predictions | evaluator | " + " | ".join(heads) + " |\n")
    sys.stdout.write("|---|---|" + "---:|" * len(heads) + "\n")
    for row in rows:
        cells = [
            cell
            for count in counts
            for cell in (f"{row[f'per_s_{count}']:,.0f}", f"{row[f'ratio_{count}']:.1f}x")
        ]
        sys.stdout.write(
            f"| {row['predictions']} | {row['evaluator']} | " + " | ".join(cells) + " |\n"
        )


if __name__ == "__main__":
    main()
