"""Make the publishable copy of a study or of one run, small enough for the repository:

    python tools/publish.py runs/frameworks results/studies/frameworks
    python tools/publish.py runs/20261120-101500-langgraph_sql-a1b2 results/cpu/seed0 [--whole]
    python tools/publish.py --packed runs/probe_roles runs/probe_worth results/studies/pocket-probe
    python tools/publish.py --packed --allow=program runs/teams results/studies/teams
    python tools/publish.py --packed --as-published results/gpu-spider/seeds packed

A run's copy has its record, its configuration, one row a step, one row a rollout and one row a
call. It keeps what tables, charts and statistics read, and drops or shortens the rest
(`results/README.md` also lists this):

    steps        verl's statistics of lengths, turns and perplexities, and columns that are constant
                 or repeat another column
    episodes     ids and times; of the times `framework_s` stays, which `harness compare` derives
                 from them. Final queries become hashes (`answer_hash`). Texts (question, queries,
                 results) stay only for the rollouts that `harness report` shows of a study (60 of
                 a run by itself); for a study's first run, or with `--whole`, for all. Reasons of
                 other rollouts end at the colon
    transitions  everything but role, trained or not, number of tokens, and the gateway's time

Checkpoints, logs and data are not copied. A study's copy also has its file and state, and
`comparison.md` as `harness compare` prints it for the copy. A copy may be copied again.

With `--packed`, several studies, or folders of runs, go into one archive, a tenth as large:
`runs.tar.xz`, in which a run of several studies is stored once. It has only the rows of validations
and no calls, so that `harness compare` prints accuracy, its course and the cost of validations for
an unpacked copy. Seconds, rates and memory are rounded to 16 binary digits, and `by_role` holds
lists instead of JSON. `STUDY.md` next to the archive has the tables of all rows. With
`--as-published`, for copies made before, every row stays, and no `STUDY.md` is needed.
With `--allow=KEY`, runs may differ in a key of their identity. A certificate made after a run gets
into its record.
"""

from __future__ import annotations

import json
import lzma
import os
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from math import frexp, isfinite, ldexp
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from harness.compare.agreement import DRAW, answer_hashes
from harness.compare.by_role import role_lists
from harness.compare.comparison import compare
from harness.compare.formats import render
from harness.compare.measures import framework_s
from harness.compare.references import reference_rows
from harness.compare.selection import select
from harness.compare.states import PACKED, STUDY_FILE
from harness.contracts.trainers import MEASURES
from harness.errors import HarnessError
from harness.runs.folder import RunFolder
from harness.runs.reading import Run, read_run
from harness_report.episodes import shown
from harness_report.page import EPISODES

TEXTS = 60
"""Number of rollouts with texts in a run by itself: a report of four such runs shows as many."""
READ = ("step", *MEASURES, "timing_s/", "perf/", "actor/", "rollout/", "val/")
"""Prefixes of the columns of steps that readers look for by name."""
TOLD = ("critic/", "training/")
"""Prefixes of columns that are kept where they vary and repeat no other column."""
TIMES_AND_RATES = re.compile(r"^timing_s/|^perf/(?!total_num_tokens)|_s$")
"""Columns of seconds, rates and memory."""
LEFT_OUT = ("rollout_id", "attempt_id", "call_roles", "started_s", "elapsed_s")
CALL = ("step", "phase", "role", "trained", "response_tokens", "gateway_s")


def main(source: Path, target: Path, texts: int | None) -> None:
    if (source / STUDY_FILE).is_file():
        publish_study(source, target)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        publish_run(source, target, texts)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"{target}: {len(list(target.rglob('run.json')))} runs, {size / 2**20:.2f} MiB")


def publish_study(study: Path, target: Path) -> None:
    state = state_of(study)
    target.mkdir(parents=True)
    runs = runs_of(state)
    for run in runs:
        publish_run(
            study / run, target / run, None if run == runs[0] else max(12, EPISODES // len(runs))
        )
    (target / STUDY_FILE).write_text(
        json.dumps(state, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    copy_file(study, target)
    found = compare(select([target]))
    references = reference_rows(found["task_set"])
    (target / "comparison.md").write_text(render(found, "md", references), encoding="utf-8")
    print(
        f"Tables in Markdown: <!-- table: compare {target} --> and <!-- /table -->, "
        "then tools/table.py --write"
    )


def state_of(study: Path) -> dict[str, Any]:
    """Return a study's state, without processes of the machine that it ran on."""
    state: dict[str, Any] = json.loads((study / STUDY_FILE).read_text(encoding="utf-8"))
    for job in state["jobs"]:
        job.pop("pid", None)
        job.pop("pid_started", None)
    return state


def copy_file(study: Path, target: Path) -> None:
    """Copy a study's file; the output of `harness contribution` has none."""
    if (study / "study.yaml").is_file():
        shutil.copyfile(study / "study.yaml", target / "study.yaml")


def runs_of(state: dict[str, Any]) -> list[str]:
    """Return the folders of a study's runs, each once, in the order of its jobs."""
    return list(dict.fromkeys(job["run"] for job in state["jobs"] if job.get("run")))


def publish_packed(
    studies: list[Path], target: Path, allow: Sequence[str] = (), published: bool = False
) -> None:
    """Pack studies that share runs, or folders of runs of no study, into one archive.

    Args:
        allow: As in `harness compare`.
        published: The runs are copies already, and all their rows stay.
    """
    target.mkdir(parents=True)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 2**28}]
    with tempfile.TemporaryDirectory() as place:
        for study in studies:
            folder = Path(place) / study.name
            folder.mkdir()
            state = state_of(study) if (study / STUDY_FILE).is_file() else None
            for run in (
                runs_of(state)
                if state
                else sorted(path.parent.name for path in study.glob("*/run.json"))
            ):
                copy = folder / run
                # A study's runs are named by their ids, others as one likes.
                there = next(Path(place).glob(f"*/{run}"), None) if state else None
                if there is None and published:
                    keep_run(study / run, copy)
                elif there is None:
                    publish_run(study / run, copy, 0, packed=True)
                else:
                    shutil.copytree(there, copy, copy_function=os.link)
            if state:
                (folder / STUDY_FILE).write_text(
                    json.dumps(state, ensure_ascii=False) + "\n", encoding="utf-8"
                )
                copy_file(study, folder)
            if published:
                continue
            found = compare(select([study]), allow=allow)
            text = render(found, "md", reference_rows(found["task_set"]))
            (target / f"{study.name}.md").write_text(text, encoding="utf-8")
        with (
            lzma.open(target / PACKED, "wb", format=lzma.FORMAT_XZ, filters=filters) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            for path in sorted(
                Path(place).rglob("*"), key=lambda path: (path.name, str(path))
            ):  # similar files in sequence compress better
                if path.is_file():
                    archive.add(path, str(path.relative_to(place)), filter=anonymous)


def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Clear owner and time, so that an archive made again is the same."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def publish_run(source: Path, target: Path, texts: int | None, packed: bool = False) -> None:
    """Copy one run, with the texts of some of its rollouts or, for None, of all.

    Args:
        packed: For an archive: validations alone, no calls, and not compressed, so that the archive
            compresses its rows together with those of other runs.
    """
    run = read_run(source)
    target.mkdir()
    for name in ("run.json", "config.yaml"):
        shutil.copyfile(source / name, target / name)
    if run.parity and not run.record["parity"]:
        RunFolder.open(target).update(parity=run.parity)
    if len(run.steps):
        write(slim_steps(pq.read_table(source / "steps.parquet")), target / "steps.parquet", packed)
    if len(run.episodes):
        write(slim_episodes(run, texts, packed), target / "episodes.parquet", packed)
    if run.transitions is not None and not packed:
        write(slim_calls(run.transitions), target / "transitions.parquet")


def keep_run(source: Path, target: Path) -> None:
    """Copy a published run for an archive: the same rows, uncompressed for the archive's sake."""
    target.mkdir()
    for path in source.iterdir():
        if path.suffix == ".parquet":
            write(pq.read_table(path), target / path.name, packed=True)
        else:
            shutil.copyfile(path, target / path.name)


def slim_steps(steps: pa.Table) -> pa.Table:
    kept: dict[str, tuple[float | None, ...]] = {}
    measured = [tuple(steps[name].to_pylist()) for name in MEASURES if name in steps.column_names]
    for name in sorted(steps.column_names, key=lambda name: not name.startswith(READ)):
        values = tuple(steps[name].to_pylist())
        if name not in MEASURES and values in measured:
            continue
        varies = len({*values} - {None}) > 1 and values not in kept.values()
        if name.startswith(READ) or (name.startswith(TOLD) and varies):
            kept[name] = values
    return steps.select([name for name in steps.column_names if name in kept])


def slim_episodes(run: Run, texts: int | None, packed: bool = False) -> pa.Table:
    """Return one row a rollout, sorted by question, which compresses best."""
    rows = run.episodes.with_columns(answer_hash=answer_hashes(run.episodes))
    spent = framework_s(run)
    if spent is not None:
        rows = rows.with_columns(framework_s=binary_round(spent, 10 if packed else 20))
    if texts is not None:
        chosen = {draw for table in shown(run, texts) for draw in table.select(DRAW).rows()}
        few = pl.Series([draw in chosen for draw in rows.select(DRAW).rows()])
        rows = rows.with_columns(
            *(
                pl.when(few).then(name)
                for name in ("question", "answer", "first_answer", "tool_calls")
            ),
            pl.when(few)
            .then("reward_reason")
            .otherwise(pl.col("reward_reason").str.split(":").list.first()),
        )
    if packed:
        rows = rows.filter(phase="val")
    rows = rows.sort("phase", "task_id", "step", "session", maintain_order=True).drop(
        LEFT_OUT, strict=False
    )
    types = pq.read_schema(run.folder.path / "episodes.parquet")
    added = {"answer_hash": pa.string(), "framework_s": pa.float32()}
    fields = [
        (name, types.field(name).type if name in types.names else added[name])
        for name in rows.columns
    ]
    return rows.to_arrow().cast(pa.schema(fields))


def slim_calls(calls: pl.DataFrame) -> pa.Table:
    return calls.select(CALL).with_columns(binary_round(calls["gateway_s"])).to_arrow()


def binary_round(seconds: pl.Series, digits: int = 20) -> pl.Series:
    """Round to binary digits, with zeros that compress; 20 are a microsecond, 10 a millisecond."""
    rounded: pl.Series = (seconds * 2**digits).round() / 2**digits
    return rounded.cast(pl.Float32)


def compact(table: pa.Table) -> pa.Table:
    """Round measures of the machine and turn `by_role` into lists, which compress better."""
    rows = pl.from_arrow(table)
    assert isinstance(rows, pl.DataFrame)
    changed: list[pl.Series] = []
    for column in rows:
        if column.name == "by_role":
            with suppress(pl.exceptions.ComputeError):  # a cell is not JSON: the column stays
                changed.append(rows.select(role_lists(column.dtype))["by_role"])
        elif column.dtype.is_float() and TIMES_AND_RATES.search(column.name):
            changed.append(significant_digits(column, 16))
    return rows.with_columns(changed).to_arrow() if changed else table


def significant_digits(values: pl.Series, digits: int) -> pl.Series:
    """Round to a number of significant binary digits; 16 are within 0.002 %."""
    rounded: list[float | None] = []
    for value in values:
        if value is None or not isfinite(value):
            rounded.append(value)
            continue
        mantissa, exponent = frexp(value)
        rounded.append(ldexp(round(ldexp(mantissa, digits)), exponent - digits))
    return pl.Series(values.name, rounded, values.dtype)


def write(table: pa.Table, path: Path, packed: bool = False) -> None:
    table = compact(table) if packed else table
    floats = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    pq.write_table(
        table,
        path,
        compression="none" if packed else "zstd",
        compression_level=None if packed else 19,
        use_dictionary=False,
        use_byte_stream_split=False if packed else floats,
        write_statistics=False,
        store_schema=False,
    )


if __name__ == "__main__":
    given = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("--")]
    options = {argument for argument in sys.argv[1:] if argument.startswith("--")}
    allow = sorted(
        option.removeprefix("--allow=") for option in options if option.startswith("--allow=")
    )
    options = {option for option in options if not option.startswith("--allow=")}
    several = options in ({"--packed"}, {"--packed", "--as-published"}) and len(given) > 1
    if not several and (len(given) != 2 or options - {"--whole"} or allow):
        raise SystemExit(__doc__)
    if given[-1].exists():
        raise SystemExit(f"publish: {given[-1]} exists already; remove it or name another folder")
    try:
        with ExitStack() as half_made:
            half_made.callback(shutil.rmtree, given[-1], ignore_errors=True)
            if several:
                publish_packed(given[:-1], given[-1], allow, "--as-published" in options)
            else:
                main(given[0], given[1], texts=None if options else TEXTS)
            half_made.pop_all()
    except (HarnessError, OSError) as error:
        raise SystemExit(f"publish: {error}") from error
