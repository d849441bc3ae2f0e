"""Stock tasksets in two frameworks over real HTTP score what verifiers' own harness scores, to the last digit."""

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

from harness.errors import find_uv
from harness.scripted.server import ReceivedRequest, Reply, ScriptedServer
from harness_sql.tool_loop.scenarios import calling

pytestmark = pytest.mark.timeout(600)
THEIRS = Path(__file__).with_name("theirs.py")
DOCS = Path(__file__).parents[3] / "docs" / "verifiers.md"
OPENAI, LANGGRAPH = "openai_agents_tools", "langgraph_tools"


def script(request: ReceivedRequest) -> Reply:
    """Uses the tool that a task is about; some answers are wrong, and some partly right."""
    asked = next(str(one["content"]) for one in request.messages if one["role"] == "user")
    said = [str(one["content"]) for one in request.messages if one["role"] == "tool"]
    if found := re.search(r'look up "(.*?)"', asked):
        if not said:
            return calling(("facts_lookup", json.dumps({"name": found[1]})))
        return Reply("I do not know." if "Turing" in asked else f"<answer>{said[-1].upper()}</answer>")
    if found := re.search(r'word="(\w+)"', asked):
        turns = 5 if found[1] == "bravo" else 1  # verifiers stops it after four
        if len(said) < turns:
            return calling(("scratchpad_roundtrip", json.dumps({"word": found[1]})))
        return Reply("nothing" if found[1] == "charlie" else said[-1])
    text = asked.rpartition("Question: ")[2]
    return Reply(f"<reversed_text>{text[::-1][: 3 + len(text) // 2]}</reversed_text>")


def ours(runs: Path, agent: str, python: Path, taskset: str, config: str, limit: int) -> dict[int, dict[str, Any]]:
    """Rows of an evaluation by the number of the task."""
    with ScriptedServer(script, token_ids=False) as model:
        command = [sys.executable, "-m", "harness", "eval", "--agent", agent, "--task", "verifiers", "--split", "all"]
        command += ["--endpoint", model.base_url, "--runs-dir", str(runs), "--json"]
        options = {"python": python, "taskset": taskset, "config": config, "limit": limit}
        settings = [f"task.options.{name}={value}" for name, value in options.items()]
        for one in (*settings, "reward.name=verifiers", "rollout.runners=1", "max_turns=8", "rollout.retries=3"):
            command += ["--set", one]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    assert not [one for one in model.requests if '"gold"' in one.raw.decode()]
    (run,) = runs.iterdir()
    rows = pyarrow.parquet.read_table(run / "episodes.parquet").to_pylist()
    return {int(row["task_id"].rpartition("/")[2]): row for row in rows}


def theirs(python: Path, taskset: str, config: str, limit: int) -> dict[int, dict[str, Any]]:
    """What verifiers' own harness has for the same replies."""
    with ScriptedServer(script, token_ids=False) as model:
        uv = find_uv()
        assert uv is not None
        path = f"{Path(uv).parent}{os.pathsep}{os.environ['PATH']}"
        words = [str(python), str(THEIRS), model.base_url, taskset, config, json.dumps(list(range(limit)))]
        variables = os.environ | {"THEIR_KEY": "none", "PRIME_API_KEY": "none", "PATH": path}
        done = subprocess.run(words, capture_output=True, text=True, timeout=500, env=variables)
    assert done.returncode == 0, done.stderr[-3000:]
    return {int(number): one for number, one in json.loads(done.stdout.splitlines()[-1]).items()}


@pytest.mark.parametrize(
    ("taskset", "limit", "agents"),
    [
        ("glossary", 4, [OPENAI, LANGGRAPH]),
        ("scratchpad", 3, [LANGGRAPH]),
        ("reverse_text", 6, [OPENAI]),
    ],
)
def test_scores_are_verifiers_own(
    python: Path, texts: Path, tmp_path: Path, taskset: str, limit: int, agents: list[str]
) -> None:
    config = json.dumps({"dataset_name": str(texts)} if taskset == "reverse_text" else {})
    expected = theirs(python, taskset, config, limit)
    assert len(expected) == limit and not any(one["errors"] for one in expected.values()), expected
    scores = {number: one["reward"] for number, one in expected.items()}
    assert len(set(scores.values())) > 1, "the replies tell nothing apart"
    for agent in agents:
        rows = ours(tmp_path / agent, agent, python, taskset, config, limit)
        assert {row["outcome"] for row in rows.values()} == {"ok"}, [row["detail"] for row in rows.values()]
        assert {number: row["reward"] for number, row in rows.items()} == scores, agent
        if taskset == "scratchpad":
            assert expected[1]["stopped"] == "done" and "ended by done" in rows[1]["reward_reason"]
    row = f"| `{taskset}` | {', '.join(map(repr, scores.values()))} |"
    assert row in DOCS.read_text(encoding="utf-8"), f"docs/verifiers.md lacks: {row}"
