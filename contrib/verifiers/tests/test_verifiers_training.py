"""The study of docs/verifiers.md, in one of its frameworks: a training on a stock taskset, comparison and report."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

pytest.importorskip("verl")

from harness_verifiers.process import VARIABLE
from scripted_policies import scripted_policy

PAGE = Path(__file__).parents[3] / "docs" / "verifiers.md"
FACTS = Path(__file__).parent / "tasksets" / "glossary" / "glossary" / "servers" / "facts.json"
AGENT = "langgraph_tools"
"""One of the study's two: a training more is a minute and a half of the processor."""


@pytest.mark.train
@pytest.mark.timeout(900)
def test_a_taskset_is_trained_on_compared_and_reported(python: Path, tmp_path: Path) -> None:
    facts = json.loads(FACTS.read_text())
    asked = json.dumps({"name": "facts_lookup", "arguments": {"name": "Ada Lovelace"}})
    call = f"<tool_call>\n{asked}\n</tool_call>"
    shares = {
        call: 0.4,
        f"<answer>{'; '.join(facts.values())}</answer>": 0.3,
        "I do not know.": 0.3,
    }
    policy = scripted_policy(shares, tmp_path / "policy")
    (study,) = re.findall(
        r"^```yaml\n(# glossary\.yaml\n.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    (tmp_path / "glossary.yaml").write_text(study)

    def harness(*words: str) -> str:
        command = [sys.executable, "-m", "harness", *words]
        variables = {**os.environ, VARIABLE: str(python)}
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    # Steps of a usual size would let so small a policy end before its first word.
    settings = ("--set", f"policy.path={policy}", "--set", "train.learning_rate=1e-6")
    harness("study", "glossary.yaml", "--only", f"agent={AGENT}", *settings)
    (run,) = (tmp_path / "runs" / "glossary").glob(f"*-{AGENT}-*")
    rows = pyarrow.parquet.read_table(run / "episodes.parquet").to_pylist()
    assert {(row["outcome"], row["reward"]) for row in rows} == {("ok", 0.0), ("ok", 1.0)}
    calls = [one for row in rows for one in json.loads(row["tool_calls"])]
    assert {(one["tool"], one["ok"], one["text"]) for one in calls} == {
        ("facts_lookup", True, facts["ada lovelace"])
    }
    (step,) = (
        row
        for row in pyarrow.parquet.read_table(run / "steps.parquet").to_pylist()
        if row["step"] == 1
    )
    assert step["actor/grad_norm"] > 0 and step["training/rollout_probs_diff_max"] < 1e-3

    compared: dict[str, Any] = json.loads(harness("compare", "runs/glossary", "--format", "json"))
    (arm,) = compared["arms"]
    assert (arm["agent"], arm["unscored"], arm["signal"]) == (AGENT, 0, 1.0)
    assert compared["task_set"] == "verifiers" and not compared["failed"]
    harness("report", "runs/glossary", "--out", "report.html")
    page = (tmp_path / "report.html").read_text()
    assert AGENT in page and "looked_up" in page, "the part of the reward"
