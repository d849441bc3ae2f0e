"""`pocket_split`: every question can be answered by what the tools give, and by nothing less."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from harness.mock_model.server import ScriptedServer
from harness.plugins import environment
from harness_teams.tasks import PocketSplitTasks
from harness_teams.teacher import questions, script

SPLITS = ("train", "val", "test")


@pytest.mark.slow
def test_every_plan_finds_its_answer_by_the_tools_alone() -> None:
    tools = environment("split_sql")
    tasks = {task.id: task for split in SPLITS for task in PocketSplitTasks().load(split)}
    asked = dict(questions())
    assert asked.keys() == tasks.keys() and len(tasks) > 800

    async def seen(task: Any, database: str, sql: str) -> str:
        limits = {"timeout_s": 30.0, "max_rows": 20, "max_chars": 400}
        found = await tools.call(tools.payload(task, limits), f"query_{database}", {"sql": sql})
        assert found.ok, (task.id, sql, found.text)
        return ", ".join(found.text.splitlines()[1:])

    for key in list(asked)[::7]:
        found: list[str] = []
        for step in asked[key].plan:
            found.append(asyncio.run(seen(tasks[key], step.database, step.sql.format(*found))))
        assert tuple(found) == asked[key].found, (key, asked[key].plan)


def test_no_question_can_be_answered_without_a_look() -> None:
    """Whoever knows how often which answer was right, of questions of one kind, is seldom right."""
    right: dict[str, Counter[str]] = defaultdict(Counter)
    for _, question in questions():
        right[question.kind][question.answer] += 1
    guessed = sum(counts.most_common(1)[0][1] for counts in right.values())
    assert guessed / sum(sum(counts.values()) for counts in right.values()) < 0.1


def test_questions_are_the_same_in_another_process_and_splits_share_no_database() -> None:
    code = "from harness_teams.tasks import PocketSplitTasks\nprint(PocketSplitTasks().describe()['sha256'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == PocketSplitTasks().describe()["sha256"]
    clusters = [{task.cluster for task in PocketSplitTasks().load(split)} for split in SPLITS]
    assert not clusters[0] & clusters[1] and not clusters[1] & clusters[2]


IDIOMATIC = [
    f"{one}_team_idiomatic" for one in ("langgraph", "openai_agents", "autogen", "agent_framework")
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "tasks"),
    [
        ("reference_team", 40),
        ("reference_tools", 40),
        *((one, 8) for one in ("langgraph_team", *IDIOMATIC)),
    ],
)
def test_perfect_members_are_right_everywhere(agent: str, tasks: int, tmp_path: Path) -> None:
    """A team, and a single agent with all tools, whose members see what agents see."""
    with ScriptedServer(script, token_ids=False) as model:
        command = [
            sys.executable,
            "-m",
            "harness",
            "eval",
            "--preset",
            "pocket-split",
            "--agent",
            agent,
        ]
        command += [
            "--split",
            "val",
            "--limit",
            str(tasks),
            "--endpoint",
            model.base_url,
            "--runs-dir",
            str(tmp_path),
        ]
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (run,) = tmp_path.iterdir()
    rows = pyarrow.parquet.read_table(run / "episodes.parquet").to_pylist()
    assert [row["reward"] for row in rows] == [1.0] * tasks, [
        (row["answer"], row["reward_reason"]) for row in rows
    ]
    assert json.loads(done.stdout)["result"]["outcomes"] == {"ok": tasks}
