"""Published tables equal the records beside them, and a published study compares as the study did."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner
from typing_extensions import is_typeddict

from harness.cli import app
from harness.compare import keys, references, states
from harness.compare.agreement import answer_hashes
from harness.compare.comparison import compare
from harness.compare.formats import markdown_tables, render
from harness.compare.layout import tables
from harness.compare.references import reference_rows
from harness.compare.selection import select
from harness.compare.states import read_state
from harness.runs import rows
from harness.runs.reading import read_run
from harness_power_analysis import planning
from harness_report.episodes import sample
from harness_report.page import write_report
from strictness import strict_adapter

ROOT = Path(__file__).parents[2]
STUDIES = sorted(file.parent for file in (ROOT / "results" / "studies").glob("*/study.json"))
Write = Callable[..., Any]


def script(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def study(write_run: Write, tmp_path: Path) -> Path:
    """A finished study of two arms with one seed, as `harness study` leaves it."""
    folder = tmp_path / "runs"
    runs = {name: write_run(name, val_limit=40) for name in ("reference_sql", "langgraph_sql")}
    jobs = [
        {
            "key": f"{name}-seed0",
            "arm": name,
            "seed": 0,
            "kind": "train",
            "state": "finished",
            "run": run.id,
            "pid": 7,
        }
        for name, run in runs.items()
    ]
    state = {
        "schema_version": 1,
        "name": "small",
        "baseline": "reference_sql",
        "margin": 0.1,
        "jobs": jobs,
    }
    (folder / "study.json").write_text(json.dumps(state))
    (folder / "study.yaml").write_text("name: small\n")
    return folder


@pytest.mark.slow
def test_tables_in_the_documents_are_those_of_the_records() -> None:
    done = script("table.py", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def parts() -> list[type]:
    rooms = (keys, planning, references, states)
    of_rooms = [
        one
        for room in rooms
        for one in vars(room).values()
        if is_typeddict(one) and one.__module__ == room.__name__
    ]
    return [*of_rooms, rows.Trained]


def test_every_key_says_what_it_is_on_a_page_that_is_made_of_the_model(parts: list[type]) -> None:
    page = run_path(str(ROOT / "tools" / "fields.py"))
    fields, shown = page["fields"], page["OF_COMPARISONS"]
    assert set(shown) < set(parts)
    for part in parts:
        assert part.__doc__ and all(meaning for _, _, meaning in fields(part)), part
        assert {name for name, _, _ in fields(part)} <= {
            name for one in shown for name, _, _ in fields(one)
        }
    written = (ROOT / "docs" / "comparisons.md").read_text(encoding="utf-8")
    assert written == page["comparisons"](), "run: python tools/fields.py"


@pytest.mark.slow
def test_a_comparison_is_of_its_model_to_the_last_key(parts: list[type]) -> None:
    strict = strict_adapter(keys.Comparison, parts)
    for study in STUDIES:
        found = compare(select([study]))
        strict.validate_python(found)
        again = json.loads(render(found, "json"))
        assert again.pop("references") == [] and again["schema_version"] == keys.SCHEMA_VERSION
        strict.validate_python(again)
        with pytest.raises(ValueError, match="surprise"):
            strict.validate_python({**found, "arms": [{**found["arms"][0], "surprise": 1}]})
        assert read_state(study)["name"] == study.name
        assert (study / "comparison.md").read_text() == render(
            found, "md", reference_rows(found["task_set"])
        )


@pytest.mark.slow
def test_studies_in_one_archive_share_runs_and_compare_by_their_validations(
    study: Path, tmp_path: Path
) -> None:
    second = shutil.copytree(study, tmp_path / "second")
    target = tmp_path / "packed"
    done = script("publish.py", "--packed", str(study), str(second), str(target))
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in target.iterdir()) == ["runs.md", "runs.tar.xz", "second.md"]
    found = compare(select([study]))
    assert (target / "runs.md").read_text() == render(
        found, "md", reference_rows(found["task_set"])
    )
    with tarfile.open(target / "runs.tar.xz") as archive:
        links = [member.name for member in archive if member.islnk()]
        archive.extractall(tmp_path / "unpacked", filter="data")
    assert len(links) == 8 and {name.rpartition("/")[2] for name in links} == {
        *("run.json", "config.yaml", "steps.parquet", "episodes.parquet")
    }
    for name in ("runs", "second"):
        again = compare(select([tmp_path / "unpacked" / name]))
        assert again["pairs"] == found["pairs"] and again["learning"] == found["learning"]
        assert [arm["accuracy_final"] for arm in again["arms"]] == [
            arm["accuracy_final"] for arm in found["arms"]
        ]
        assert '"pid"' not in (tmp_path / "unpacked" / name / "study.json").read_text()


@pytest.mark.slow
def test_an_archive_of_what_was_published_has_every_row_of_it(study: Path, tmp_path: Path) -> None:
    published, target = tmp_path / "published", tmp_path / "packed"
    for arguments in (
        [str(study), str(published)],
        ["--packed", "--as-published", str(published), str(target)],
    ):
        done = script("publish.py", *arguments)
        assert done.returncode == 0, done.stderr
    assert [path.name for path in target.iterdir()] == ["runs.tar.xz"]
    again = target / "published"
    with tarfile.open(target / "runs.tar.xz") as archive:
        archive.extractall(target, filter="data")
    for path in published.glob("*/*"):
        copy = again / path.relative_to(published)
        if path.suffix == ".parquet":
            assert_same_rows(pl.read_parquet(copy), pl.read_parquet(path))
        else:
            assert copy.read_bytes() == path.read_bytes()


def assert_same_rows(packed: pl.DataFrame, published: pl.DataFrame) -> None:
    """Assert that an archive has the rows of a table, with rounded seconds and lists of roles."""
    assert packed.columns == published.columns
    for column in published:
        copy = packed[column.name]
        if column.name == "by_role":
            assert copy.to_list() == [json.loads(cell) for cell in column]
        elif column.name.endswith("_s") or column.name.startswith(("timing_s/", "perf/")):
            assert copy.is_null().equals(column.is_null())
            known = column.drop_nulls().to_list()
            assert copy.drop_nulls().to_list() == pytest.approx(known, rel=2**-16)
        else:
            assert copy.equals(column)


@pytest.mark.slow
def test_a_published_study_compares_as_the_study_did(study: Path, tmp_path: Path) -> None:
    target = tmp_path / "published"
    done = script("publish.py", str(study), str(target))
    assert done.returncode == 0, done.stderr
    before, after = compare(select([study])), compare(select([target]))
    assert before["arms"][0]["overhead_ms_per_call"] == pytest.approx(
        after["arms"][0]["overhead_ms_per_call"], rel=1e-3
    )
    assert after["arms"][0]["trained_by_role"] == before["arms"][0]["trained_by_role"] != {}
    assert after["pairs"] == before["pairs"]
    assert "Baseline: reference_sql." in (target / "comparison.md").read_text()
    assert "pid" not in (target / "study.json").read_text()
    assert not list(target.rglob("logs")) and not list(target.rglob("*.jsonl"))
    assert script("publish.py", str(study), str(target)).returncode == 1  # never over an older one
    lost = tmp_path / "lost"
    shutil.copytree(study, lost)
    shutil.rmtree(lost / select([study]).runs[1].id)
    done = script("publish.py", str(lost), str(tmp_path / "half"))
    assert (
        done.returncode == 1
        and "is not a run folder" in done.stderr
        and not (tmp_path / "half").exists()
    )
    assert markdown_tables(tables(after)) == markdown_tables(tables(before))
    for run in select([study]).runs:
        copy = read_run(target / run.id)
        pairs = run.episodes.with_columns(hash=answer_hashes(run.episodes)).join(
            copy.episodes, on=["phase", "step", "task_id", "session"]
        )
        assert len(pairs) == len(copy.episodes) and (pairs["hash"] == pairs["answer_hash"]).all()
        assert copy.steps["entropy"].equals(run.steps["entropy"])


@pytest.mark.slow
def test_a_published_study_can_be_browsed_and_published_again(study: Path, tmp_path: Path) -> None:
    target, again = tmp_path / "published", tmp_path / "again"
    for source, copy in ((study, target), (target, again)):
        done = script("publish.py", str(source), str(copy))
        assert done.returncode == 0, done.stderr
    first, second = (run["run"] for run in json.loads((target / "study.json").read_text())["jobs"])
    for path in target.rglob("*.parquet"):
        assert path.read_bytes() == (again / path.relative_to(target)).read_bytes(), path
    whole, few = (read_run(target / run).episodes for run in (first, second))
    assert whole["tool_calls"].null_count() == 0 < few["tool_calls"].null_count() < len(few)
    assert few["answer_hash"].null_count() == 0 and "elapsed_s" not in few.columns
    browsed = sample({run.id: [run] for run in select([target]).runs}, 60)["episodes"]
    assert len(browsed) == 60 and all(
        one["steps"] and one["question"] and one["answer"] for one in browsed
    )
    page = write_report(
        select([target]), tmp_path / "report.html", episodes=1000
    )  # more than have texts
    assert page.stat().st_size


@pytest.mark.slow
def test_commands_of_the_documents_compare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").symlink_to(ROOT / "results")
    pages = "".join(
        page.read_text() for page in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    )
    inline = re.findall(r"`harness (compare results/[^`]+)`", pages)
    in_blocks = re.findall(r"^ +\S*harness (compare results/.+)$", pages, re.MULTILINE)
    commands = {*inline, *in_blocks}
    for archive, command in re.findall(
        r"`mkdir -p runs && tar -xJf (\S+) -C runs && harness ([^`]+)`", pages
    ):
        with tarfile.open(archive) as packed:
            packed.extractall("runs", filter="data")
        commands.add(command)
    assert len(commands) > 1
    for command in commands:
        done = CliRunner().invoke(app, [*command.split(), "--format", "md"])
        assert done.exit_code == 0, (command, done.exception)


def test_results_stay_small() -> None:
    files = [
        path for path in (ROOT / "results").rglob("*") if path.is_file() and path.suffix != ".pyc"
    ]
    assert sum(path.stat().st_size for path in files) < 12_000_000


@pytest.mark.slow
def test_a_drifted_table_is_named_and_written_anew(study: Path, tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    marker = f"<!-- table: compare {study} accuracy notes -->\n"
    file.write_text(f"Before.\n\n{marker}| old |\n<!-- /table -->\n\nAfter.\n")
    checked = script("table.py", "--check", str(file))
    assert (
        checked.returncode == 1
        and "accuracy notes" in checked.stdout
        and "--write" in checked.stdout
    )
    assert script("table.py", "--write", str(file)).returncode == 0
    text = file.read_text()
    assert text.startswith(f"Before.\n\n{marker}| arm | seeds |") and text.endswith(
        "<!-- /table -->\n\nAfter.\n"
    )
    assert "- Baseline: reference_sql." in text and "| old |" not in text
    assert script("table.py", "--check", str(file)).returncode == 0


def test_a_marker_of_nothing_is_refused_in_a_line(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    for what in ("compare results/studies/nothing", "picture results/cpu"):
        file.write_text(f"<!-- table: {what} -->\n<!-- /table -->\n")
        done = script("table.py", "--check", str(file))
        assert done.returncode == 1 and what in done.stderr and done.stderr.count("\n") == 1


def test_phases_of_runs_with_other_tokens_are_not_put_in_one_table(tmp_path: Path) -> None:
    import polars as pl

    runs = tmp_path / "runs"
    for name in ("1gpu", "2gpus"):
        shutil.copytree(ROOT / "results" / "gpu-speed" / name, runs / name)
    page = tmp_path / "page.md"
    page.write_text(f"<!-- table: phases {runs} -->\n<!-- /table -->\n")
    done = script("table.py", "--write", str(page))
    assert done.returncode == 0, done.stderr
    rows = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    assert len(rows) == 3 and rows[1].startswith("| 1gpu | 1 |") and rows[1].endswith(" 1.00 |")
    steps = pl.read_parquet(runs / "2gpus" / "steps.parquet")
    steps.with_columns(pl.col("perf/total_num_tokens") + 1).write_parquet(
        runs / "2gpus" / "steps.parquet"
    )
    assert "different tokens" in script("table.py", "--write", str(page)).stderr
