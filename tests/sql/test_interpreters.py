"""The same verdicts on every supported Python, whatever the hash seed: the evaluator needs no library."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from harness_sql.rewards.audit import ATTACKS

REPO = Path(__file__).resolve().parents[2]
SCRIPT = """
import json, sys
from harness_sql.sqlite.evaluator import evaluate
from harness_sql.sqlite.sandbox import execute
path, cases = json.load(sys.stdin)
out = []
for gold, pred in cases:
    verdict = evaluate(path, gold, pred, timeout_s=0.3)
    out.append([verdict.match, verdict.reason, sorted(verdict.flags), execute(path, pred).error_type])
loaded = [name for name in ("pydantic", "numpy", "pandas", "polars", "pyarrow", "typer") if name in sys.modules]
print(json.dumps([loaded, out]))
"""
CASES = [
    ("SELECT name, age FROM singer", "SELECT age, name FROM singer"),
    ("SELECT 1, 1.5", "SELECT 1.5, 1.0"),
    ("SELECT name FROM singer", "SELECT name FROM singer; SELECT 1"),
    ("SELECT name FROM singer", "SELECT ?"),
    ("SELECT name FROM singer", "SELECT :x"),
    ("SELECT count(*) FROM singer", "SELECT printf('%.*c', 500000000, 'x')"),
    *(
        (a.gold, a.pred)
        for a in ATTACKS
        if not a.name.startswith("endless") and "\ud800" not in a.pred
    ),
]


def interpreters() -> list[Path]:
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    return [
        path for minor in (11, 12, 13) for path in sorted(root.glob(f"3.{minor}.*/bin/python"))[:1]
    ]


def verdicts(python: Path, seed: str, database: Path) -> list[object]:
    environment = {
        "PATH": "",
        "PYTHONPATH": os.pathsep.join([str(REPO), str(REPO / "plugins" / "sql" / "src")]),
        "PYTHONHASHSEED": seed,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [str(python), "-W", "error", "-c", SCRIPT],
        env=environment,
        input=json.dumps([str(database), CASES]),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    result: list[object] = json.loads(done.stdout)
    return result


def test_verdicts_are_the_same_on_every_python_and_hash_seed(singers: Path) -> None:
    pythons = interpreters()
    if len(pythons) < 2:
        pytest.skip("needs two of Python 3.11, 3.12 and 3.13 under ~/.pyenv/versions")
    digest = hashlib.sha256(singers.read_bytes()).hexdigest()
    results = [verdicts(python, seed, singers) for python in pythons for seed in ("0", "4711")]
    assert all(result == results[0] for result in results)
    assert results[0][0] == []  # nothing but the standard library was imported
    assert hashlib.sha256(singers.read_bytes()).hexdigest() == digest
