"""Stock tasksets in five frameworks over real HTTP score what verifiers' own harness scores, to the last digit."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

import harness
from harness.errors import find_uv
from harness.mock_model.server import ReceivedRequest, Reply, ScriptedServer
from harness_sql.tool_loop.scenarios import calling

pytestmark = pytest.mark.timeout(1800)
THEIRS = Path(__file__).with_name("theirs.py")
DOCS = Path(__file__).parents[3] / "docs" / "verifiers.md"
FRAMEWORKS = (
    "openai_agents_tools",
    "langgraph_tools",
    "autogen_tools",
    "crewai_tools",
    "agent_framework_tools",
)
LIMITS = {"glossary": 3, "scratchpad": 3, "reverse_text": 6}
"""How many of a taskset's tasks are run."""


def script(request: ReceivedRequest) -> Reply:
    """Uses the tool that a task is about; some answers are wrong, and some partly right."""
    asked = next(str(one["content"]) for one in request.messages if one["role"] == "user")
    results = [str(one["content"]) for one in request.messages if one["role"] == "tool"]
    if found := re.search(r'look up "(.*?)"', asked):
        if not results:
            return calling(("facts_lookup", json.dumps({"name": found[1]})))
        return Reply(
            "I do not know." if "Turing" in asked else f"<answer>{results[-1].upper()}</answer>"
        )
    if found := re.search(r'word="(\w+)"', asked):
        turns = 5 if found[1] == "bravo" else 1  # verifiers stops it after four
        if len(results) < turns:
            return calling(("scratchpad_roundtrip", json.dumps({"word": found[1]})))
        return Reply("nothing" if found[1] == "charlie" else results[-1])
    text = asked.rpartition("Question: ")[2]
    return Reply(f"<reversed_text>{text[::-1][: 3 + len(text) // 2]}</reversed_text>")


@pytest.fixture(scope="module")
def configs(texts: Path) -> Mapping[str, Mapping[str, str]]:
    """The configuration of each taskset."""
    return {"glossary": {}, "scratchpad": {}, "reverse_text": {"dataset_name": str(texts)}}


def ours(
    runs: Path, agent: str, python: Path, taskset: str, config: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Rows of an evaluation in the order of the tasks.

    In this process, so that the subprocess that loads and scores is the same for all agents; theirs are others.
    """
    options = {
        "python": python,
        "taskset": taskset,
        "config": dict(config),
        "limit": LIMITS[taskset],
    }
    settings = {f"task.options.{name}": value for name, value in options.items()}
    settings |= {
        "reward.name": "verifiers",
        "rollout.runners": 1,
        "max_turns": 8,
        "rollout.retries": 3,
    }
    with ScriptedServer(script, token_ids=False) as model:
        run = harness.evaluate(
            agent=agent,
            task="verifiers",
            split="all",
            endpoint=model.base_url,
            settings=settings,
            runs_dir=runs,
            progress=False,
        )
    assert not [one for one in model.requests if '"gold"' in one.raw.decode()]
    rows = pyarrow.parquet.read_table(run.path / "episodes.parquet").to_pylist()
    return sorted(rows, key=lambda row: int(row["task_id"].rpartition("/")[2]))


@pytest.fixture(scope="module")
def theirs(
    python: Path, configs: Mapping[str, Mapping[str, str]]
) -> dict[str, list[dict[str, Any]]]:
    """What verifiers' own harness has for the same replies, by taskset, task by task."""
    uv = find_uv()
    assert uv is not None
    asked = {name: (configs[name], limit) for name, limit in LIMITS.items()}
    with ScriptedServer(script, token_ids=False) as model:
        path = f"{Path(uv).parent}{os.pathsep}{os.environ['PATH']}"
        variables = os.environ | {"THEIR_KEY": "none", "PRIME_API_KEY": "none", "PATH": path}
        words = [str(python), str(THEIRS), model.base_url, json.dumps(asked)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=1500, env=variables)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[dict[str, Any]]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("taskset", "agents"),
    [
        ("glossary", FRAMEWORKS),
        ("scratchpad", ["langgraph_tools"]),
        ("reverse_text", ["openai_agents_tools"]),
    ],
)
def test_scores_are_verifiers_own(
    python: Path,
    configs: Mapping[str, Mapping[str, str]],
    theirs: dict[str, list[dict[str, Any]]],
    tmp_path: Path,
    taskset: str,
    agents: Sequence[str],
) -> None:
    expected = theirs[taskset]
    assert len(expected) == LIMITS[taskset] and not any(one["errors"] for one in expected), expected
    scores = [one["reward"] for one in expected]
    assert len(set(scores)) > 1, "the replies tell nothing apart"
    for agent in agents:
        rows = ours(tmp_path / agent, agent, python, taskset, configs[taskset])
        assert {row["outcome"] for row in rows} == {"ok"}, (agent, [row["detail"] for row in rows])
        assert [row["reward"] for row in rows] == scores, agent
        if taskset == "scratchpad":
            assert expected[1]["stopped"] == "done" and "ended by done" in rows[1]["reward_reason"]
    row = f"| `{taskset}` | {', '.join(map(repr, scores))} |"
    assert row in DOCS.read_text(encoding="utf-8"), f"docs/verifiers.md lacks: {row}"
