"""Figures are finite or null where they are read: a damaged one costs itself, not the report and not the page."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars import selectors

from harness.compare.selection import select
from harness.errors import UserError
from harness.runs.reading import read_run
from harness.util.parsing import parse_json
from harness_report.page import write_report
from harness_watch.view import View

CELLS = ["no JSON", "5", '[{"role": NaN, "calls": 1e999}]', "[5]"]
BAD = ["NaN", "Infinity", "-Infinity", "1e999"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, write_run: Callable[..., Any]) -> Path:
    return write_run(tmp_path_factory.mktemp("whole"), val_limit=4, steps=2).path


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "runs" / whole.name))


def read_everywhere(run: Path, tmp_path: Path) -> str:
    """Return the report's text; the page of `harness watch` is made of the same run, with one opened episode."""
    view = View(run.parent)
    state = view.look(run.name)
    assert "NaN" not in state.charts and "Infinity" not in state.charts
    episode = state.found["browser"]["episodes"][0]
    view.opened(run.name, run.name, episode["id"])
    report = write_report(select([run]), tmp_path / "report.html", references=False)
    return report.read_text()


def test_no_number_of_a_table_that_is_not_finite_is_read(run: Path, tmp_path: Path) -> None:
    numbers = pl.Series([float("nan"), float("inf"), float("-inf")])
    for kind in ("episodes", "steps", "transitions"):
        path = run / f"{kind}.parquet"
        table = pl.read_parquet(path)
        places = [n % len(numbers) for n in range(len(table))]
        damaged = [
            numbers.gather(places).alias(name) for name in table.select(selectors.float()).columns
        ]
        table.with_columns(damaged).write_parquet(path)
        found = getattr(read_run(run), kind).select(selectors.float())
        assert found.width and found.null_count().sum_horizontal()[0] >= found.width * len(
            table
        ) - (len(table) if kind == "episodes" else 0)
    read_everywhere(run, tmp_path)


def test_a_record_of_figures_that_are_not_finite_is_read_with_nulls_or_refused_in_one_line(
    run: Path, tmp_path: Path
) -> None:
    record = run / "run.json"
    data = json.loads(record.read_text())
    read = []
    for number, place in enumerate(_float_places(data)):
        changed = json.loads(json.dumps(data))
        _put(changed, place, f"FIGURE {number}")
        record.write_text(_damaged(changed))
        try:
            read_run(run)
        except UserError as error:
            assert "run.json" in str(error) and "\n" not in str(error)
        else:
            read.append(place)
    for number, place in enumerate(read):
        _put(data, place, f"FIGURE {number}")
    record.write_text(_damaged(data))
    assert read
    read_everywhere(run, tmp_path)


def _put(data: Any, place: tuple[Any, ...], value: str) -> None:
    for name in place[:-1]:
        data = data[name]
    data[place[-1]] = value


def _damaged(data: Any) -> str:
    """Return JSON with the texts `FIGURE n` replaced by numbers that are not finite."""
    return re.sub(r'"FIGURE (\d+)"', lambda found: BAD[int(found[1]) % len(BAD)], json.dumps(data))


def _float_places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, float):
        return [place]
    parts = value.items() if isinstance(value, dict) else []
    if isinstance(value, list):
        parts = enumerate(value)
    return [found for name, part in parts for found in _float_places(part, (*place, name))]


def test_a_cell_that_is_no_json_of_its_kind_is_read_as_null(run: Path, tmp_path: Path) -> None:
    path = run / "episodes.parquet"
    table = pl.read_parquet(path)
    for column in ("by_role", "reward_by_role", "reward_parts", "tool_calls"):
        cells = [CELLS[n % len(CELLS)] for n in range(len(table))]
        table = table.with_columns(pl.Series(column, cells))
    table.write_parquet(path)
    read_everywhere(run, tmp_path)


def test_rows_of_a_run_under_way_hold_finite_figures_or_none(run: Path, tmp_path: Path) -> None:
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "status": "running", "result": None}))
    for kind in ("episodes", "steps", "transitions"):
        (run / f"{kind}.parquet").unlink()
    for path in (run / "logs").glob("*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for number, row in enumerate(rows):
            for place in _float_places(row):
                _put(row, place, f"FIGURE {number}")
        path.write_text("".join(f"{_damaged(row)}\n" for row in rows))
    read_everywhere(run, tmp_path)


@pytest.mark.parametrize("number", BAD)
def test_json_is_read_with_finite_numbers(number: str) -> None:
    assert parse_json(f'{{"a": {number}, "b": [{number}, 1.5, 2]}}') == {
        "a": None,
        "b": [None, 1.5, 2],
    }


def test_a_record_is_written_as_json_that_every_program_reads(run: Path) -> None:
    folder = read_run(run).folder
    folder.update(result={"accuracy": float("nan"), "steps": 2})
    text = (run / "run.json").read_text()
    assert "NaN" not in text and json.loads(text)["result"] == {"accuracy": None, "steps": 2}
