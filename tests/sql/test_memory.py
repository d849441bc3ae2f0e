"""Queries that hog memory beside others: SQLite's heap is one for the process."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, sys, threading, time
from collections import Counter
from harness.environments.sql.evaluator import evaluate
from harness.environments.sql.sandbox import HEAP_LIMIT_BYTES, Limits, execute

path, hold_s, rounds = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
golds = ["SELECT name, age FROM person ORDER BY age, name", "SELECT count(*) FROM person GROUP BY age % 7",
         "SELECT age % 10, max(name) FROM person GROUP BY 1", "SELECT name FROM person WHERE age > 500"]
verdicts = Counter()

def holding(rows):
    return (f"WITH RECURSIVE n(i, x) AS (SELECT 1, zeroblob(4000) UNION ALL "
            f"SELECT i + 1, zeroblob(4000) FROM n WHERE i < {rows}) SELECT count(a.x) FROM n a, n b, n c")

def most_rows():
    "How many one query can hold and be ended by its deadline only."
    low, high = 0, HEAP_LIMIT_BYTES // 4000
    while high - low > HEAP_LIMIT_BYTES // 5_000_000:
        rows = (low + high) // 2
        fits = execute(path, holding(rows), Limits(timeout_s=hold_s / 2)).error_type != "memory"
        low, high = (rows, high) if fits else (low, rows)
    return low

def hog(rows):
    execute(path, holding(rows), Limits(timeout_s=hold_s))

def judge(number):
    for case in range(150):
        gold = golds[case % len(golds)]
        verdict = evaluate(path, gold, f"{gold} -- {number}.{case}")
        verdicts[str(verdict.match)] += 1
        if verdict.match is not True:
            verdicts[verdict.reason] += 1

for gold in golds:
    evaluate(path, gold, gold)
full = most_rows()
for left in range(rounds):  # nobody knows how much the others must lack to fail: leave 12 to 60 rows
    threads = [threading.Thread(target=hog, args=(full - 12 - left * 48 // rounds,))]
    threads[0].start()
    time.sleep(hold_s / 2)
    threads += [threading.Thread(target=hog, args=(full * 2,)) for _ in range(5)]
    threads += [threading.Thread(target=judge, args=(2 * left + number,)) for number in range(2)]
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join()
print(json.dumps(verdicts))
"""

PEAK = """
import random, sys, threading, time
from pathlib import Path
from harness.environments.sql.sandbox import Limits, execute

end = time.monotonic() + 20

def hog(number):
    chance = random.Random(number)
    while time.monotonic() < end:
        size = chance.choice([900, 4000])
        rows = chance.choice([150, 200, 250, 300, 400, 470, 600]) * 1_000_000 // size
        part = (f"WITH RECURSIVE n(i, x) AS (SELECT 1, zeroblob({size}) UNION ALL "
                f"SELECT i + 1, zeroblob({size}) FROM n WHERE i < {rows}) ")
        last = chance.choice(["SELECT count(a.x) FROM n a, n b, n c", "SELECT i FROM n ORDER BY x, -i"])
        execute(sys.argv[1], part + last, Limits(timeout_s=4))

threads = [threading.Thread(target=hog, args=(number,)) for number in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line))
"""


@pytest.fixture
def people(tmp_path: Path) -> Path:
    path = tmp_path / "people.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE person (name TEXT, age INTEGER)")
    connection.executemany("INSERT INTO person VALUES (?, ?)", [(f"name {n}", n) for n in range(1500)])
    connection.commit()
    connection.close()
    return path


def run(script: str, *arguments: object, heap_bytes: int = 1 << 29) -> str:
    """What a script prints in a process of its own: SQLite's heap and the peak of memory are a process's."""
    environment = {**os.environ, "HARNESS_SQLITE_HEAP_BYTES": str(heap_bytes)}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr[-2000:]
    return done.stdout


def test_gold_is_right_beside_queries_that_hog_memory(people: Path) -> None:
    assert json.loads(run(SCRIPT, people, 2, 8, heap_bytes=24 << 20)) == {"True": 2400}


def test_hogs_in_six_threads_stay_below_a_gigabyte(people: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    assert int(run(PEAK, people)) < 1_000_000  # KiB
