"""Claims are made from verdicts; README's findings and docs/choosing.md recommend nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tools" / "table.py"
IMPERATIVES = frozenset(
    "add avoid begin choose consider do don't drop give go have keep leave let make never pay "
    "pick prefer put reward run select set skip start stop take teach train try use write".split()
)
"""Verbs that recommend when a sentence begins with them."""
TABLE_BLOCK = re.compile(r"<!-- table:.*?<!-- /table -->", re.DOTALL)
MARKER = re.compile(r"<!--.*?-->", re.DOTALL)
OPENINGS = re.compile(
    r"\*\*\s*(\w[\w']*)"  # bold words anywhere
    r"|^(?:#+\s+|[-*]\s+|\|\s*)?(\w[\w']*)"  # a paragraph, heading, item or row
    r"|[.:;?!]\s+([A-Z]\w*)",  # a later sentence
    re.MULTILINE,
)


def written(text: str) -> str:
    """Return a text without made tables and markers."""
    return MARKER.sub("", TABLE_BLOCK.sub("", text))


def findings(text: str) -> str:
    """Return the section of README that says what was found, without made tables and markers."""
    return written(text.partition("## What it has found")[2].partition("\n## ")[0])


def recommendations(text: str) -> list[str]:
    """Return the imperative verbs that open a sentence of a text."""
    words = ["".join(groups) for groups in OPENINGS.findall(text)]
    return [word for word in words if word.lower() in IMPERATIVES]


def test_findings_recommend_nothing() -> None:
    section = findings((ROOT / "README.md").read_text(encoding="utf-8"))
    assert "pocket" in section and recommendations(section) == []


def test_the_page_on_choosing_recommends_nothing() -> None:
    page = written((ROOT / "docs" / "choosing.md").read_text(encoding="utf-8"))
    assert "pocket" in page and recommendations(page) == []


def test_the_table_of_choices_has_figures_of_the_records(tmp_path: Path) -> None:
    file = tmp_path / "choices.yaml"
    file.write_text(
        "groups:\n"
        "  - policy: pocket-sql\n"
        "    page: page.md\n"
        "    study: results/studies/frameworks\n"
        "    arms: [langgraph_sql]\n"
        "    labels: {reference_sql: plain Python}\n"
    )
    _, _, first, second, _, held_out = run_path(str(TABLE))["choices_table"](file).splitlines()
    assert first.startswith("| [pocket-sql](page.md), 20 | plain Python | 56.2 [45.9, 66.1] | 99.6")
    assert " | baseline (8) | " in first and first.endswith(" | - |")
    assert second.startswith("|  | langgraph_sql | ") and "**equivalent**, identical (8)" in second
    assert held_out == "Held-out questions: 240 of `pocket`, split `val`."


@pytest.mark.parametrize(
    "sentence",
    [
        "**Train every role, and pay every call with the rollout's reward.**",
        "**Have a small policy write its queries as text.**",
        "Of a team, it depends. **Choose the framework that you like to work in.**",
        "- Use two turns.",
        "### Do not call a tool",
        "| Pay each call for its own answer? | No. |",
        "Two turns are enough. Train the critic.",
    ],
)
def test_recommendations_are_seen(sentence: str) -> None:
    assert recommendations(sentence)


def check(file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TABLE), "--check", str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_claim_that_says_more_than_its_verdict_is_found(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(
        r"<!-- claim: results/studies/qwen-roles/qwen_roles .*?<!-- /claim -->", readme, re.S
    )
    assert block is not None
    page = tmp_path / "page.md"
    page.write_text(block[0])
    assert check(page).returncode == 0
    page.write_text(block[0].replace("cannot tell if different from", "as good as"))
    refused = check(page)
    assert refused.returncode == 1 and "qwen_roles" in refused.stdout


PROBE = "results/studies/pocket-probe/probe_roles"


def test_a_number_in_a_sentence_is_that_of_the_records() -> None:
    value = run_path(str(TABLE))["value"]
    expected = {
        f'pair {PROBE} "all roles"': "+3.4 [+0.5, +6.4]",
        f'pair {PROBE} "all roles" "baseline=check only"': "+19.0 [",
        f'arm {PROBE} "check only" accuracy_final': "69.2 [56.4, 79.6]",
        f'arm {PROBE} "check only" steps': "20",
        f'learning {PROBE} "check only" checkpoint': "+23.0 [+9.4, +36.6]",
        "run results/gpu-probe seed0 val_accuracy_final": "91.7",
        "run results/gpu-probe seed0 steps": "40",
        f'printed {PROBE} "all roles" "trained tokens"': "186,147",
        f'printed {PROBE} "all roles" "difference (points) after at 53,217 trained tokens %"': "-3.6 [-8.4, +1.1]",
    }
    assert {what: value(what)[: len(text)] for what, text in expected.items()} == expected
    low, _, high = value(f'seeds {PROBE} "all roles"').partition(" to ")
    assert float(low) < 88.2 < float(high)
    for what, message in (
        (f'pair {PROBE} "some roles"', "no arm 'some roles'; there are 'first query only'"),
        (f'arm {PROBE} "all roles" tokens', "'tokens' is no known figure of an arm; there are "),
        (f'mean {PROBE} "all roles"', "no kind 'mean'"),
        (
            "run results/gpu-probe seed0 mean",
            "'mean' is no figure of a run; there are agent_failed",
        ),
        (f'printed {PROBE} "all roles" nothing', "has no table with 'nothing'"),
        ("pair results/nowhere x", "wanted: KIND FOLDER"),
    ):
        with pytest.raises(SystemExit, match=re.escape(message)):
            value(what)


@pytest.mark.slow
def test_a_number_that_drifted_is_found_and_others_are_listed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    marker = f'<!-- value: printed {PROBE} "all roles" "trained tokens" -->'
    page.write_text(
        f"It took {marker}186,147<!-- /value --> tokens.\n\n```\n12.5 s\n```\nOr 99.5 % in `3.25`.\n"
    )
    assert check(page).returncode == 0
    listed = subprocess.run(
        [sys.executable, str(TABLE), "--numbers", str(page)], capture_output=True, text=True
    )
    assert listed.stdout.splitlines()[0] == f"{page}:6: 99.5" and "1 lines" in listed.stdout
    page.write_text(page.read_text().replace("186,147<", "186,148<"))
    refused = check(page)
    assert refused.returncode == 1 and '"trained tokens"' in refused.stdout


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("different", "*a*: different from *b*: +3.4 [+0.5, +6.4] points (8 seeds)"),
        ("equivalent", "*a*: equivalent to *b*, within ±5.0 points: +3.4 [+0.5, +6.4] points"),
        ("cannot tell", "*a*: cannot tell if different from *b*: +3.4"),
    ],
)
def test_the_words_follow_from_the_verdict(verdict: str, words: str) -> None:
    difference = {"mean": 0.034, "low": 0.005, "high": 0.064, "seeds": 8}
    pair: dict[str, Any] = {"arm": "a", "baseline": "b", "verdict": verdict, "identical": False}
    sentence = run_path(str(TABLE))["verdict_sentence"]
    assert sentence({**pair, "difference": difference}, {"margin": 0.05}).startswith(words)
    same = sentence({**pair, "identical": True, "difference": difference}, {"margin": 0.05})
    assert same.endswith("the same training in 8 of 8 seeds")


def test_the_front_table_has_verdicts_of_the_records(tmp_path: Path) -> None:
    file = tmp_path / "verdicts.yaml"
    file.write_text(
        "columns: [small, large]\n"
        "rows:\n"
        "  - question: Frameworks\n"
        "    page: page.md\n"
        "    cells: {small: [{study: results/studies/frameworks, arm: langgraph_sql}]}\n"
    )
    table = run_path(str(TABLE))["verdicts_table"](file)
    row = "| [Frameworks](page.md) | **equivalent**, identical (8) |  |"
    assert table.splitlines()[-1] == row


def test_the_front_table_refuses_an_unknown_column(tmp_path: Path) -> None:
    file = tmp_path / "verdicts.yaml"
    file.write_text("columns: [small]\nrows: [{question: Q, page: p.md, cells: {huge: []}}]\n")
    with pytest.raises(SystemExit, match="no column 'huge'"):
        run_path(str(TABLE))["verdicts_table"](file)


def test_a_gain_is_stated_with_intervals_and_seeds() -> None:
    estimates = [{"mean": mean, "low": mean - 0.1, "high": mean + 0.1} for mean in (0.6, 0.7)]
    arm: dict[str, Any] = {"name": "a", "seeds": [0, 1, 2]}
    arm |= {"accuracy_initial": estimates[0], "accuracy_final": estimates[1]}
    sentence = run_path(str(TABLE))["gain_sentence"]("a", {"arms": [arm]})
    assert sentence == "*a*: from 60.0 [50.0, 70.0] to 70.0 [60.0, 80.0] % (3 seeds)"
