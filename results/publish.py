"""Makes the publishable copy of a study: `python results/publish.py runs/frameworks results/studies/frameworks`.

Of every run: record, configuration, one row a step, one row a rollout, and of its calls role and times only
(`transitions.parquet` without texts and token ids). Beside them the study's file and state, and `comparison.json` and
`comparison.md` as `harness compare` prints them for the copy. Checkpoints, logs and data stay behind.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.compare.comparison import compare
from harness.compare.formats import render
from harness.compare.references import reference_rows
from harness.compare.runs import STUDY_FILE, select
from harness.errors import HarnessError

FILES = ("run.json", "config.yaml", "steps.parquet", "episodes.parquet")
CALL = ("step", "phase", "attempt_id", "index", "role", "trained")


def main(study: Path, target: Path) -> None:
    state = json.loads((study / STUDY_FILE).read_text(encoding="utf-8"))
    if target.exists():
        raise SystemExit(f"{target} exists already; remove it or name another folder")
    target.mkdir(parents=True)
    for job in state["jobs"]:
        job.pop("pid", None)
        job.pop("pid_started", None)
        if job.get("run"):
            copy_run(study / job["run"], target / job["run"])
    (target / STUDY_FILE).write_text(json.dumps(state, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    shutil.copyfile(study / "study.yaml", target / "study.yaml")
    found = compare(select([target]))
    references = reference_rows(found["task_set"])
    (target / "comparison.json").write_text(render(found, "json", references), encoding="utf-8")
    (target / "comparison.md").write_text(render(found, "md", references), encoding="utf-8")
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"{target}: {sum(bool(job.get('run')) for job in state['jobs'])} runs, {size / 2**20:.1f} MiB")
    print(f"Tables in Markdown: <!-- table: compare {target} --> and <!-- /table -->, then results/table.py --write")


def copy_run(run: Path, target: Path) -> None:
    """The files of one run that comparison and report need."""
    target.mkdir()
    for name in FILES:
        if (run / name).is_file():
            shutil.copyfile(run / name, target / name)
    calls = run / "transitions.parquet"
    if calls.is_file():
        table = pq.read_table(calls, columns=[*CALL, "response_ids", "latency_s", "gateway_s"])
        slim = table.select(CALL)
        slim = slim.append_column("response_tokens", pc.fill_null(pc.list_value_length(table["response_ids"]), 0))
        for name in ("latency_s", "gateway_s"):
            slim = slim.append_column(name, table[name].cast(pa.float32()))
        pq.write_table(slim, target / "transitions.parquet", compression="zstd")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except (HarnessError, OSError) as error:
        raise SystemExit(f"publish: {error}") from error
