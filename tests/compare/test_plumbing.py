"""A scaffold whose tools were never called has not been measured, and gets no verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from harness.api.summaries import facts
from harness.compare.comparison import compare
from harness.compare.formats import render
from harness.compare.keys import Comparison
from harness.compare.layout import tables
from harness.compare.selection import select
from harness.compare.sentences import sentences
from harness.compare.verdicts import verdict_text
from harness_report.page import write_report

Write = Callable[..., Any]
HEAD = "calls parsed / looked like calls"
ALLOWED = ["parity"]


def with_calls(run: Any, *, offered: int, parsed: int, unread: int) -> Path:
    """A run of which the first rollouts of every step have tool calls, so many of each kind."""
    path: Path = run.path / "episodes.parquet"
    rows = pl.read_parquet(path)
    place = pl.int_range(pl.len()).over("phase", "step")
    rows.with_columns(
        (place < offered).cast(pl.Int64).alias("calls_with_tools"),
        (place < parsed).cast(pl.Int64).alias("parsed_calls"),
        ((place >= parsed) & (place < parsed + unread)).cast(pl.Int64).alias("unread_calls"),
    ).write_parquet(path)
    return run.path  # type: ignore[no-any-return]


def without_counts(run: Any) -> Path:
    """A run as older versions wrote it."""
    path: Path = run.path / "episodes.parquet"
    pl.read_parquet(path).drop("calls_with_tools", "parsed_calls").write_parquet(path)
    return run.path  # type: ignore[no-any-return]


def behaviour(comparison: Comparison) -> list[dict[str, str]]:
    (table,) = (table for table in tables(comparison) if table.key == "behaviour")
    return [dict(zip(table.heads, row, strict=True)) for row in table.rows]


@pytest.fixture
def arms(write_run: Write) -> Callable[..., list[Path]]:
    """Runs of the reference, which offers no tools, and of an agent that does."""
    small = {"steps": 2, "val_limit": 40, "accuracy": (0.3, 0.9)}

    def written(seeds: tuple[int, ...] = (0, 1), **calls: int) -> list[Path]:
        plain = [write_run("reference_sql", seed, **small) for seed in seeds]
        far = small | {"accuracy": (0.3, 0.35)}
        tools = [write_run("langgraph_sql", seed, **far) for seed in seeds]
        return [
            *(with_calls(run, offered=0, parsed=0, unread=0) for run in plain),
            *(with_calls(run, offered=40, **calls) for run in tools),
        ]

    return written


def test_tools_that_were_never_used_get_no_verdict(
    arms: Callable[..., list[Path]], tmp_path: Path
) -> None:
    chosen = select(arms(parsed=0, unread=6))
    found = compare(chosen, "reference_sql", allow=ALLOWED)
    (pair,) = found["pairs"]
    assert pair["verdict"] == "refused"
    assert verdict_text(pair).startswith("refused (tools were offered and never used")
    assert "langgraph_sql: 0.0 / 6.0" in pair["refused"]
    assert [row.get(HEAD) for row in behaviour(found)] == ["", "0.0 / 6.0"]
    refusals = [
        one for one in sentences(found) if one.startswith("No verdict against reference_sql")
    ]
    assert len(refusals) == 1 and "--allow unused_tools" in refusals[0]
    assert not any("Different from" in one for one in sentences(found))
    page = write_report(chosen, tmp_path / "r.html", baseline="reference_sql", allow=ALLOWED)
    assert HEAD in page.read_text() and "0.0 / 6.0" in page.read_text()
    assert "never used" in render(found, "md")
    assert facts(chosen.runs[-1])["tool calls parsed / looked like calls"] == "0.0 / 6.0"


def test_a_verdict_on_unused_tools_can_be_allowed_and_is_listed(
    arms: Callable[..., list[Path]],
) -> None:
    found = compare(
        select(arms(parsed=0, unread=6)), "reference_sql", allow=[*ALLOWED, "unused_tools"]
    )
    (pair,) = found["pairs"]
    assert pair["verdict"] in ("different", "cannot tell") and "refused" not in pair
    assert {"key": "unused_tools", "why": "allowed", "values": {"langgraph_sql": "0.0 / 6.0"}} in [
        dict(one) for one in found["exceptions"]
    ]


def test_agents_that_use_their_tools_are_compared(arms: Callable[..., list[Path]]) -> None:
    found = compare(select(arms(parsed=30, unread=1)), "reference_sql", allow=ALLOWED)
    assert found["pairs"][0]["verdict"] != "refused"
    assert [row.get(HEAD) for row in behaviour(found)] == ["", "30.0 / 31.0"]


def test_tools_that_a_training_unlearns_were_used(write_run: Write) -> None:
    run = write_run("langgraph_sql", 0, steps=2, val_limit=40)
    path = with_calls(run, offered=40, parsed=20, unread=0) / "episodes.parquet"
    rows = pl.read_parquet(path)
    late = pl.col("step") > 0
    rows.with_columns(
        pl.when(late).then(0).otherwise(pl.col("parsed_calls")).alias("parsed_calls")
    ).write_parquet(path)
    plain = with_calls(
        write_run("reference_sql", 0, steps=2, val_limit=40), offered=0, parsed=0, unread=0
    )
    found = compare(select([plain, run.path]), "reference_sql", allow=ALLOWED)
    assert found["pairs"][0]["verdict"] != "refused"
    assert behaviour(found)[1][HEAD] == "0.0 / 0.0"


def test_other_roles_of_one_agent_are_no_scaffolds(write_run: Write) -> None:
    small = {"steps": 2, "val_limit": 40}
    runs = [write_run("langgraph_sql", 0, **small, agent_match=role) for role in ("write", "check")]
    paths = [with_calls(run, offered=40, parsed=0, unread=3) for run in runs]
    found = compare(select(paths))
    assert found["pairs"][0]["verdict"] != "refused"


def test_older_runs_without_counts_compare_as_before(write_run: Write) -> None:
    small = {"steps": 2, "val_limit": 40}
    runs = [write_run(agent, 0, **small) for agent in ("reference_sql", "langgraph_sql")]
    now = compare(select([run.path for run in runs]), "reference_sql", allow=ALLOWED)
    older = compare(select([without_counts(run) for run in runs]), "reference_sql", allow=ALLOWED)
    assert older["pairs"] == now["pairs"]
    assert HEAD not in behaviour(older)[0]
    assert older["arms"][1]["parsed_calls"] is None
    assert json.loads(render(older, "json"))["arms"][1]["per_seed"][0]["tools_unused"] is False
