"""The brief form of a comparison: one sentence, one table, one picture, and what it costs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.compare.brief import answer, picture, table
from harness.compare.comparison import compare
from harness.compare.costs import Price, price_of, significant
from harness.compare.keys import Comparison
from harness.compare.selection import select
from harness.errors import UserError
from harness.runs.folder import RunFolder

Write = Callable[..., RunFolder]
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def evaluations(write_run: Write) -> Comparison:
    runs = [
        write_run("reference_sql", kind="eval", accuracy=(0.9, 0.9)),
        write_run("langgraph_sql", kind="eval", accuracy=(0.9, 0.9)),
        write_run("crewai_sql", kind="eval", accuracy=(0.05, 0.05)),
    ]
    return compare(select([run.path for run in runs]), "reference_sql")


def test_the_sentence_answers_which_agent_differs_and_which_is_cheapest(
    evaluations: Comparison,
) -> None:
    text = answer(evaluations)
    assert re.match(
        r"Cannot tell whether langgraph_sql differs from reference_sql "
        r"\(95 % interval -\d+\.\d to \+\d+\.\d points\); "
        r"crewai_sql is \d+\.\d points lower than reference_sql \(95 % interval ",
        text,
    ), text
    assert re.search(r"; cheapest: \w+, [\d,]+ tokens per right answer\.$", text), text
    priced = answer(evaluations, Price(1.0, 1.0))
    assert re.search(r"; cheapest: \w+, [\d.]+ per right answer at the given prices\.$", priced)


def test_the_table_has_tokens_and_with_a_price_money(evaluations: Comparison) -> None:
    plain = table(evaluations)
    assert plain.heads[-3:] == ["prompt tokens", "response tokens", "tokens/right answer"]
    priced = table(evaluations, Price(1.0, 1.0))
    assert priced.heads[-1] == "price/1,000 right answers"
    per_right = [float(row[-2].replace(",", "")) for row in priced.rows]
    money = [float(row[-1].replace(",", "")) for row in priced.rows]
    # A million tokens cost 1, so a thousand answers of n tokens cost n / 1,000.
    assert money == pytest.approx([tokens / 1000 for tokens in per_right], rel=0.02)


def test_the_picture_has_every_arm_on_one_scale_within_80_columns(
    evaluations: Comparison,
) -> None:
    *arms, scale = picture(evaluations).splitlines()
    assert [line.split()[0] for line in arms] == ["reference_sql", "langgraph_sql", "crewai_sql"]
    assert all("●" in line and len(line) <= 80 for line in arms)
    assert min(arms[0].index("●"), arms[1].index("●")) > arms[2].index("●")
    low, high = map(float, scale.split())
    assert 0 <= low < high <= 100


def test_one_arm_is_shown_alone(write_run: Write) -> None:
    text = answer(compare(select([write_run(kind="eval").path])))
    assert re.match(r"reference_sql has accuracy \d+\.\d % \(95 % interval ", text), text
    assert "it takes" in text


def test_a_price_needs_both_directions() -> None:
    assert price_of(None, None) is None and price_of(1.0, 2.0) == Price(1.0, 2.0)
    with pytest.raises(UserError, match="--price-out is missing"):
        price_of(1.0, None)


def test_numbers_have_no_more_digits_than_are_known() -> None:
    shown = [significant(value) for value in (1877.3, 52.4, 0.1234, 0, None)]
    assert shown == ["1,900", "52", "0.12", "0", "-"]


def test_the_command_prints_the_brief_form_and_no_more(
    command: Command, write_run: Write, tmp_path: Path
) -> None:
    runs: list[Any] = [
        write_run(name, kind="eval").path for name in ("reference_sql", "langgraph_sql")
    ]
    brief = command("compare", *runs, "--brief", "--allow", "parity", COLUMNS="80")
    assert brief.returncode == 0, brief.stderr
    whole = command("compare", *runs, "--allow", "parity", COLUMNS="80")
    assert len(brief.stdout.splitlines()) < len(whole.stdout.splitlines()) / 2
    assert brief.stdout.splitlines()[0] == whole.stdout.splitlines()[0]
    assert all(len(line) <= 80 for line in brief.stdout.splitlines())
    written = command(
        "compare", *runs, "--brief", "--allow", "parity", "--out", tmp_path / "brief.md"
    )
    assert written.returncode == 0
    assert "├" in (tmp_path / "brief.md").read_text()
    refused = command("compare", *runs, "--brief", "--format", "json")
    assert refused.returncode == 2 and "--brief is text" in refused.stderr
    unpriced = command("compare", *runs, "--price-in", "1")
    assert unpriced.returncode == 2 and "--price-out is missing" in unpriced.stderr


def test_equal_costs_of_some_arms_are_not_said_of_all(evaluations: Comparison) -> None:
    first, second, last = evaluations["arms"]
    second["accuracy_final"] = first["accuracy_final"]
    second["prompt_tokens_per_rollout"] = first["prompt_tokens_per_rollout"]
    second["response_tokens_per_rollout"] = first["response_tokens_per_rollout"]
    last["accuracy_final"] = {**last["accuracy_final"], "mean": 0.0}
    assert "right answer" not in answer(evaluations)
    last["accuracy_final"] = first["accuracy_final"]
    last["prompt_tokens_per_rollout"] = first["prompt_tokens_per_rollout"]
    last["response_tokens_per_rollout"] = first["response_tokens_per_rollout"]
    assert "; each takes " in answer(evaluations)
