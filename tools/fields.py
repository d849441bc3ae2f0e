"""Write pages with tables of fields: `docs/records.md` and `docs/comparisons.md`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from harness.compare import keys, references, states
from harness.runs import record_types, rows, schema
from harness_power_analysis.planning import Plan

DOCS = Path(__file__).resolve().parents[1] / "docs"
RECORDS = f"""\
# Fields of a run

Generated from `harness/runs/schema.py` and `rows.py` by `python tools/fields.py`; a test checks it.

A run's folder has `run.json` (schema version {schema.SCHEMA_VERSION}), `config.yaml`
(can be rerun unchanged), and three tables: `steps.parquet` (a row a step: `step`, what the trainer
logged, and means over its episodes), `episodes.parquet` and `transitions.parquet`."""
COMPARISONS = f"""\
# Fields of a comparison and a study

Generated from `harness/compare/keys.py` and nearby modules by `python tools/fields.py`; a test
checks it.

`harness compare --format json` prints a comparison (schema version {keys.SCHEMA_VERSION}),
`harness power --json` plans. A study's folder has `study.json`. Fields of a run have
[their own page](records.md)."""
OF_RECORDS = (
    schema.RunRecord,
    schema.Launch,
    schema.Identity,
    schema.Result,
    schema.Accuracy,
    schema.Samples,
    schema.Measured,
    schema.Certificate,
    schema.Fingerprint,
    schema.Parent,
    schema.Reading,
    schema.Sampling,
    schema.Hardware,
    schema.Study,
    schema.Counts,
    schema.Commit,
    schema.Distribution,
)
OF_COMPARISONS = (
    keys.Comparison,
    keys.Arm,
    keys.Pair,
    keys.Sides,
    keys.Side,
    keys.Start,
    keys.EstimateData,
    keys.Item,
    keys.McNemarData,
    keys.Training,
    keys.Collapses,
    keys.Figures,
    keys.RoleFigures,
    keys.RoleFigure,
    rows.Trained,
    keys.Learning,
    keys.Learned,
    keys.Gain,
    keys.Used,
    keys.Sampled,
    keys.Agreement,
    keys.AgreementStep,
    keys.View,
    keys.ViewArm,
    keys.Exempt,
    keys.Failed,
    keys.Identified,
    references.Reference,
    references.Curve,
    Plan,
    states.StudyState,
    states.Entry,
    states.StudyLaunch,
)


def records() -> str:
    """Return `docs/records.md`: every field and column."""
    lines = [RECORDS, *tables(OF_RECORDS, {schema.RunRecord: "`run.json`"})]
    for name, row in (("episodes.parquet", rows.Episode), ("transitions.parquet", rows.Call)):
        lines += ["", f"## `{name}`", "", "| column | type | meaning |", "|---|---|---|"]
        meanings = {column: meaning for column, _, meaning in fields(row)}
        lines += [
            f"| `{column}` | {kind} | {meanings[column]} |"
            for column, kind in record_types.columns(row).items()
        ]
    return "\n".join(lines) + "\n"


def comparisons() -> str:
    """Return `docs/comparisons.md`: every field."""
    return (
        "\n".join([COMPARISONS, *tables(OF_COMPARISONS, {states.StudyState: "`study.json`"})])
        + "\n"
    )


def tables(parts: Iterable[type], names: Mapping[type, str]) -> Iterator[str]:
    """Yield Markdown lines: a section with a table for each part, titled by name or by class."""
    for part in parts:
        yield from ("", f"## {names.get(part, part.__name__)}", "", str(part.__doc__).strip(), "")
        yield from ("| field | type | meaning |", "|---|---|---|")
        for field, kind, meaning in fields(part):
            yield f"| `{field}` | {kind.replace('|', chr(92) + '|')} | {meaning} |"


def fields(part: type) -> Iterator[tuple[str, str, str]]:
    """Name, type in words and meaning of every field."""
    for name, (kind, needed, more) in record_types.described(part).items():
        yield name, _named(kind) + ("" if needed else ", may be missing"), more[0]


def _named(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(f"`{one}`" for one in get_args(kind))
    return (
        kind.__name__
        if isinstance(kind, type) and not get_args(kind)
        else re.sub(r"(\w+\.)+", "", str(kind))
    )


def main() -> None:
    """Write the pages."""
    for name, text in (("records", records()), ("comparisons", comparisons())):
        (DOCS / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
