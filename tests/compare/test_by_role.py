"""Results by role, from the calls of an attempt to tables: what is not known is left out, what was not done is zero."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from harness import load_run
from harness.cli import app
from harness.compare.by_role import COUNTS, ROLE_FIGURES, held_by_role, role_figures, roles_table
from harness.compare.comparison import compare
from harness.compare.keys import RoleFigures
from harness.compare.layout import tables
from harness.compare.numbers import formed
from harness.compare.selection import select
from harness.records import Attempt, CallFailure, Verdict
from harness.runs.episodes import roles
from harness.runs.reading import Run, read_run
from harness.testing.calls import transition
from harness_report.charts import by_role

from .synthetic import write_run as write

Write = Callable[..., Any]


def attempt(*calls: tuple[str, int | None, str], failures: tuple[str, ...] = ()) -> Attempt:
    """Of calls by role, tokens of the reply and its end."""
    made = [
        transition(role, index, response_tokens=tokens, prompt_tokens=100, finish_reason=end)
        for index, (role, tokens, end) in enumerate(calls)
    ]
    failed = [
        CallFailure(9, role, "upstream_status", "policy_server", 500, "", 0.0, 0.0)
        for role in failures
    ]
    return Attempt("r", "a", "ok", "", "x", tuple(made), tuple(failed), (), 0.0, 0.0)


def test_an_attempt_says_what_each_role_did() -> None:
    calls = attempt(
        ("plan", 5, "tool_calls"),
        ("work", 7, "length"),
        ("plan", 9, "stop"),
        failures=("work", "check"),
    )
    plan, work, check = roles(calls, Verdict(1.0, "x", by_role={"work": 0.25}), {0: 0.5, 2: 1.0})
    assert plan == {
        "role": "plan",
        "calls": 2,
        "failed_calls": 0,
        "cut": 0,
        "prompt_tokens": 200,
        "response_tokens": 14,
        "trained": 2,
        "paid": 1.5,
        "reward": None,
    }
    assert (work["cut"], work["failed_calls"], work["reward"], work["trained"]) == (1, 1, 0.25, 0)
    assert (check["role"], check["calls"], check["failed_calls"]) == ("check", 0, 1)


def test_tokens_that_an_endpoint_does_not_count_are_not_known() -> None:
    (plan,) = roles(attempt(("plan", 5, "stop"), ("plan", None, "stop")), Verdict(1.0, "x"), {})
    assert plan["response_tokens"] is None and plan["prompt_tokens"] == 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("by-role")


@pytest.fixture(scope="module")
def runs(folder: Path) -> Path:
    """Three seeds of two arms; of the second only seed 1 calls the third role."""
    for seed in (0, 1, 2):
        more: dict[str, Any] = {"steps": 2, "val_limit": 20}
        write(folder, "reference_sql", seed, **more)
        write(
            folder,
            "langgraph_sql",
            seed,
            calls=2 + seed % 2,
            parts=True,
            agent_match="^write|check",
            **more,
        )
    return folder


@pytest.fixture
def one(runs: Path) -> Run:
    return next(
        run
        for run in select([runs]).runs
        if run.record["agent"] == "langgraph_sql" and run.seed == 1
    )


@pytest.mark.slow
def test_the_table_is_what_the_recorded_calls_come_to(one: Run) -> None:
    table, calls = roles_table(one, "step", "phase"), one.transitions
    assert calls is not None and set(table["run"]) == {one.id}
    assert table.height == 3 * (calls.select("step", "phase").n_unique())
    for row in table.to_dicts():
        mine = calls.filter(step=row["step"], phase=row["phase"], role=row["role"])
        everyone = calls.filter(step=row["step"], phase=row["phase"])
        rollouts = len(one.episodes.filter(step=row["step"], phase=row["phase"]))
        tokens, trained = mine["response_tokens"].sum(), mine["trained"].sum()
        assert (row["calls"], row["response_tokens"], row["trained"]) == (
            len(mine),
            tokens,
            trained,
        )
        assert row["calls_per_rollout"] == len(mine) / rollouts
        assert row["tokens_per_reply"] == tokens / len(mine)
        assert row["token_share"] == tokens / everyone["response_tokens"].sum()
        assert row["credit"] == (mine["paid"].sum() / trained if trained else None)
        assert row["reward"] == (0.5 if row["role"] == "write_query" else None)


def test_of_an_older_run_calls_say_it_and_what_they_lack_is_not_known(one: Run) -> None:
    now = roles_table(one, "step", "phase")
    one.episodes = one.episodes.drop("by_role")
    then = roles_table(one, "step", "phase")
    unknown = {name for name in then.columns if then[name].null_count() == len(then)}
    assert unknown == {"failed_calls", "prompt_tokens", "reward"} | {
        f"{name}_per_rollout" for name in ("failed_calls", "prompt_tokens")
    }
    same = [name for name in now.columns if name not in unknown]
    assert then.select(same).equals(now.select(same))
    one.transitions = None
    assert roles_table(one, "phase").is_empty() and role_figures(one) == {}


def test_a_rate_of_a_role_that_made_no_call_is_zero(one: Run) -> None:
    text = one.episodes["by_role"].str.json_decode(
        pl.List(pl.Struct({"role": pl.String, "calls": pl.Int64}))
    )
    assert text.list.len().min() == 3
    first = (pl.col("phase") == "train") & (pl.col("step") == 1)
    one.episodes = one.episodes.with_columns(
        by_role=pl.when(first).then(pl.lit("[]")).otherwise("by_role")
    )
    rows = roles_table(one, "step", "phase").filter(phase="train", step=1)
    assert len(rows) == 3 and rows.select(COUNTS).sum_horizontal().to_list() == [0, 0, 0]
    assert rows["calls_per_rollout"].to_list() == [0.0] * 3
    assert rows["tokens_per_reply"].null_count() == rows["credit"].null_count() == 3


def test_figures_are_of_the_last_validation_and_credit_is_of_training(one: Run) -> None:
    found, last = role_figures(one), one.validation()
    assert list(found) == ["write_query", "check_query", "rewrite_query"]
    assert found["write_query"].keys() == RoleFigures.__annotations__.keys()
    assert found["write_query"]["response_tokens_per_rollout"] == 10.0 and len(last) == 20
    paid = one.training["used_reward"].mean()
    assert found["write_query"]["credit"] == found["check_query"]["credit"] == pytest.approx(paid)
    assert found["rewrite_query"]["credit"] is None
    one.episodes = one.episodes.filter(phase="train")
    vars(one).pop("_validated", None)
    assert role_figures(one)["write_query"]["calls_per_rollout"] == 1.0


@pytest.mark.slow
def test_arms_are_compared_by_seed_with_student_s_interval(runs: Path) -> None:
    from scipy.stats import t

    found = compare(select([runs]), "reference_sql")
    arms = sorted(
        found["arms"], key=lambda arm: arm["name"], reverse=True
    )  # otherwise in the order of random ids
    mine, theirs = ({one["seed"]: one["by_role"] for one in arm["per_seed"]} for arm in arms)
    names = [arm["name"] for arm in arms]
    assert [name.split()[0] for name in names] == ["reference_sql", "langgraph_sql"]
    role = found["by_role"][names[1]]["write_query"]
    shares = [theirs[seed]["write_query"]["token_share"] for seed in (0, 1, 2)]
    gaps = [
        theirs[seed]["write_query"]["token_share"] - mine[seed]["write_query"]["token_share"]
        for seed in (0, 1, 2)
    ]  # type: ignore[operator]
    for values, mean, ends in (
        (shares, role["token_share"]["mean"], role["token_share"]["interval"]),
        (gaps, role["token_share"]["difference"], role["token_share"]["difference_interval"]),
    ):
        half = t.ppf(0.975, 2) * stdev(values) / math.sqrt(3)  # type: ignore[type-var]
        assert mean == pytest.approx(fmean(values)) and ends == pytest.approx(
            (mean - half, mean + half)
        )  # type: ignore[arg-type]
    rewriting = found["by_role"][names[1]]["rewrite_query"]
    assert rewriting["calls_per_rollout"]["mean"] == pytest.approx(1 / 3)
    assert rewriting["calls_per_rollout"]["difference"] == pytest.approx(-2 / 3)
    assert rewriting["tokens_per_reply"] == {
        "mean": 12.0,
        "interval": None,
        "difference": 0.0,
        "difference_interval": None,
    }
    base = found["by_role"][names[0]]["write_query"]["calls_per_rollout"]
    assert (base["mean"], base["difference"]) == (1.0, None)


def test_intervals_hold_no_value_that_a_count_or_a_share_cannot_have() -> None:
    seeds: list[Any] = []
    for seed, (calls, share, credit) in enumerate([(0.0, 0.9, -0.5), (0.0, 1.0, 0.5)]):
        figures: dict[str, float | None] = dict.fromkeys(ROLE_FIGURES, None)
        figures |= {"calls_per_rollout": calls + seed, "token_share": share, "credit": credit}
        seeds.append({"seed": seed, "start": None, "by_role": {"write": figures}})
    held = held_by_role({"arm": seeds})["arm"]["write"]
    assert held["calls_per_rollout"]["interval"] == (
        0.0,
        pytest.approx(0.5 + 12.706 * 0.5, rel=1e-3),
    )
    low, high = held["token_share"]["interval"] or (None, None)
    assert (low, high) == (pytest.approx(0.95 - 12.706 * 0.05, rel=1e-2), 1.0)
    low, high = held["credit"]["interval"] or (None, None)
    assert low == pytest.approx(-12.706 * 0.5, rel=1e-3) and high == -low


def test_arms_without_a_common_seed_have_no_difference(runs: Path) -> None:
    per_seed = {arm["name"]: arm["per_seed"] for arm in compare(select([runs]))["arms"]}
    (base, first), (other, second) = per_seed.items()
    found = held_by_role({base: first[:1], other: second[1:]}, base)
    assert found[other]["check_query"]["calls_per_rollout"]["difference"] is None
    assert found[other]["check_query"]["calls_per_rollout"]["mean"] == 1.0


def _table(runs: Path, key: str) -> list[list[str]]:
    found = {table.key: table for table in tables(compare(select([runs]), "reference_sql"))}
    return [found[key].heads, *found[key].rows] if key in found else []


def test_tables_show_them_and_only_where_there_are_several_roles(
    runs: Path, tmp_path: Path
) -> None:
    heads, *rows = _table(runs, "by_role")
    assert heads[:3] == ["arm", "role", "calls/rollout"] and len(rows) == 6
    cells = {(row[0].split()[0], row[1]): dict(zip(heads, row, strict=True)) for row in rows}
    assert cells["reference_sql", "write_query"]["calls/rollout"] == "1.00"  # the same in all seeds
    assert cells["langgraph_sql", "rewrite_query"]["calls/rollout"] == "0.33 [0.00, 1.77]"
    assert cells["langgraph_sql", "write_query"]["own reward"] == "0.500"
    heads, *rows = _table(runs, "by_role_differences")
    assert {row[0].split()[0] for row in rows} == {"langgraph_sql"} and len(rows) == 3
    write(tmp_path, "reference_sql", calls=1, steps=2, val_limit=10)
    assert _table(tmp_path, "by_role") == []


def test_what_rounds_to_zero_has_no_sign_unless_it_is_a_difference() -> None:
    assert formed(0.8, (-0.01, 1.6), ",.1f") == "0.8 [0.0, 1.6]"
    assert formed(-0.0001, None, ",.1%", signed=True) == "+0.0"


def test_commands_and_python_say_the_same(one: Run) -> None:
    path = str(one.folder.path)
    shown = CliRunner().invoke(app, ["runs", "show", path], env={"COLUMNS": "200"})
    assert shown.exit_code == 0 and "By role" in shown.output
    figures = json.loads(CliRunner().invoke(app, ["runs", "show", path, "--json"]).output)[
        "figures"
    ]["by_role"]
    assert figures == role_figures(one)
    rows = load_run(path).roles
    assert list(rows.columns) == roles_table(one, "step", "phase").columns and len(rows) == 12
    assert "share of tokens" in load_run(path)._repr_html_()
    assert "calls/rollout" in shown.output and "credit" in shown.output


@pytest.fixture
def under_way(write_run: Write) -> Iterator[Run]:
    """A run whose calls nobody reads, as of one that is watched."""
    run = read_run(write_run("reference_sql", status="failed").path)
    run.transitions = None
    yield run


def test_curves_need_no_calls_and_leave_out_a_step_under_way(under_way: Run) -> None:
    last = under_way.training["step"].max()
    under_way.training = under_way.training.filter(pl.col("step") < last)
    figure = by_role({"a": [under_way]}, "token_share", "Share", "share", ".1%")
    assert [trace["name"] for trace in figure["data"]] == [
        "write_query",
        "check_query",
        "rewrite_query",
    ]
    assert all(trace["x"] == [1] for trace in figure["data"])
    assert sum(trace["y"][0] for trace in figure["data"]) == pytest.approx(1.0)
    both = by_role(
        {"a": [under_way], "b": [under_way]}, "calls_per_rollout", "Calls", "calls", ".2f"
    )
    assert len(both["data"]) == 6 and both["data"][3]["name"] == "b, write_query"
    many = {str(index): [under_way] for index in range(11)}
    assert by_role(many, "calls_per_rollout", "Calls", "calls", ".2f")["data"] == [], (
        "33 curves cannot be told apart"
    )
