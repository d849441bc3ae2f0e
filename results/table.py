"""Keeps tables in Markdown equal to the run records: `python results/table.py --check|--write [FILE...]`.

A table stands between `<!-- table: KIND FOLDER [KEY...] -->` and `<!-- /table -->`, FOLDER as seen from the root:

    runs results/cpu                               one row a run
    compare results/studies/frameworks             what `harness compare FOLDER --format md` prints
    compare results/studies/frameworks accuracy    of it only the tables of these keys (accuracy, learning, behaviour,
                                                   cost, evidence, views, ...; `notes` are the sentences below them)

Without files: README.md, results/README.md and docs/*.md.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pandas as pd

from harness.compare.comparison import compare
from harness.compare.formats import markdown_tables
from harness.compare.layout import sentences, tables
from harness.compare.runs import select
from harness.errors import HarnessError

ROOT = Path(__file__).resolve().parent.parent
MARKED = re.compile(r"(?P<head><!-- table: (?P<what>[^>]*?) -->\n)(?P<body>.*?)(?P<end><!-- /table -->)", re.DOTALL)
PHASES = ("gen", "old_log_prob", "update_actor", "update_weights")


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def runs_table(folder: Path) -> str:
    """One row a run, by name."""
    lines = [
        "| run | agent | trains | seed | validation before | after | steps | s/step | rollout | update | minutes |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for path in sorted(folder.glob("*/run.json")):
        record = json.loads(path.read_text())
        result = record["result"]
        steps = pd.read_parquet(path.parent / "steps.parquet")
        steps = steps[steps["timing_s/step"].notna()]
        whole = steps["timing_s/step"].sum()
        share = {phase: steps[f"timing_s/{phase}"].sum() / whole for phase in PHASES}
        trains = f"`{record['agent_match']}`" + (", shuffled rewards" if record["identity"]["reward_shuffled"] else "")
        lines.append(
            f"| {path.parent.name} | {record['plugin']} | {trains} | {record['seed']} "
            f"| {percent(result['val_accuracy_initial'])} | {percent(result['val_accuracy_final'])} "
            f"| {result['steps']} | {result['step_s_median']:.1f} | {percent(share['gen'])} "
            f"| {percent(share['update_actor'] + share['old_log_prob'])} | {result['wall_s'] / 60:.1f} |"
        )
    return "\n".join(lines) + "\n"


def comparison_tables(folder: Path, keys: list[str]) -> str:
    """The tables of a study or of a folder of runs, all or those of some keys."""
    found = compare(select([folder]))
    chosen = [table for table in tables(found) if not keys or table.key in keys]
    text = markdown_tables(chosen, heading="" if keys else "###")
    notes = "".join(f"- {sentence}\n" for sentence in sentences(found)) if not keys or "notes" in keys else ""
    return f"{text}\n{notes}" if text and notes else text or notes


def made(what: str) -> str:
    """The content of one marker."""
    kind, _, rest = what.partition(" ")
    folder, *keys = rest.split() or [""]
    path = ROOT / folder
    if not folder or not path.is_dir():
        raise SystemExit(f"<!-- table: {what} -->: {folder or 'nothing'} is not a folder; wanted: KIND FOLDER [KEY...]")
    if kind == "runs":
        return runs_table(path)
    if kind == "compare":
        return comparison_tables(path, keys)
    raise SystemExit(f"<!-- table: {what} -->: no kind {kind!r}; there are runs and compare")


def main(arguments: list[str]) -> int:
    if arguments[:1] not in (["--check"], ["--write"]):
        print(__doc__)
        return 2
    files = [Path(name) for name in arguments[1:]]
    files = files or [ROOT / "README.md", ROOT / "results" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    drifted = 0
    for file in files:
        text = file.read_text(encoding="utf-8")
        fresh = MARKED.sub(lambda found: f"{found['head']}{made(found['what'])}{found['end']}", text)
        if fresh == text:
            continue
        if arguments[0] == "--write":
            file.write_text(fresh, encoding="utf-8")
            print(f"wrote {file}")
            continue
        drifted += 1
        pairs = zip(MARKED.finditer(text), MARKED.finditer(fresh), strict=True)
        stale = [old["what"] for old, new in pairs if old["body"] != new["body"]]
        print(
            f"{file}: not what the records say: {'; '.join(stale)}. Bring up to date: python results/table.py --write"
        )
    return 1 if drifted else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except HarnessError as error:
        raise SystemExit(f"table: {error}") from error
