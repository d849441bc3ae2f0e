"""What `docs/rewards.md` says of the built-in rewards is so."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import yaml

from harness.config import load_config, validate
from harness.contracts.hookspecs import RewardSpec
from harness.plugins import load, make_reward, registry
from harness_sql.rewards.hybrid import DEFAULT
from harness_sql.rewards.judge_audit import ATTACKS
from harness_sql.rewards.soft_f1 import WEIGHTS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")
OWN = [
    spec for spec in registry().specs("reward") if registry().owner("reward", spec.name) == "sql"
]


@pytest.mark.parametrize("spec", OWN, ids=lambda spec: spec.name)
def test_every_reward_and_every_option_of_it_is_on_the_page(spec: RewardSpec) -> None:
    (row,) = [
        line
        for line in PAGE.splitlines()
        if line.startswith("| ") and f"`{spec.name}`" in line.split("|")[1]
    ]
    if "own page](" in row:
        return
    section = PAGE.partition(f"\n## {spec.name}\n")[2].partition("\n## ")[0]
    options = inspect.signature(load(spec)).parameters
    assert [name for name in (*options, *spec.parts) if f"`{name}`" not in section] == []


def test_the_judges_defaults_are_those_of_the_page() -> None:
    options = inspect.signature(load(next(spec for spec in OWN if spec.name == "judge"))).parameters
    for name in (
        "temperature",
        "max_tokens",
        "max_answer_chars",
        "timeout_s",
        "retries",
        "concurrency",
    ):
        assert f"| `{name}` | {options[name].default:g} |" in PAGE


def test_weights_and_the_number_of_attacks_are_those_of_the_page() -> None:
    assert all(f"| `{name}` | {weight:g} |" in PAGE for name, weight in WEIGHTS.items())
    assert "`executes` with weight 0.1 and `judge` with weight 1;" in PAGE and DEFAULT == {
        "executes": 0.1,
        "judge": 1,
    }
    assert f"{len(ATTACKS)} attacks are played" in PAGE


def test_the_examples_are_configurations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "k")
    examples = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(examples) == 2
    for text in examples:
        make_reward(validate(yaml.safe_load(text)))
    command = PAGE.partition("harness eval ")[2].partition("```")[0]
    make_reward(load_config(None, None, re.findall(r"--set (\S+)", command)))
