"""Whole evaluations of dialogues over real HTTP: a scripted clerk, a scripted customer, and who answers whom."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from harness import Task
from harness.mock_model.server import ReceivedRequest, Reply, ScriptedServer
from harness_dialogues.desk import scripted
from harness_dialogues.desk.tasks import OrderDeskTasks
from harness_dialogues.desk.world import RETURN_DAYS
from harness_dialogues.prompts import STOP
from harness_dialogues.reward import NOT_ENDED
from harness_sql.tool_loop.scenarios import calling


def evaluated(
    folder: Path, endpoint: str, limit: int, *settings: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The record of an evaluation of the desk, and its rows."""
    command = [
        sys.executable,
        "-m",
        "harness",
        "eval",
        "--preset",
        "order-desk",
        "--split",
        "val",
        "--limit",
        str(limit),
    ]
    command += ["--endpoint", endpoint, "--runs-dir", str(folder), "--json"]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (run,) = folder.iterdir()
    return json.loads(done.stdout), pyarrow.parquet.read_table(run / "episodes.parquet").to_pylist()


def is_late(task: Task) -> bool:
    """Whether something is to be taken back that was the customer's own and delivered too long ago."""
    orders, customers = task.data["world"]["orders"], task.data["world"]["customers"]
    wished = [orders[number] for number in re.findall(r"take back order (\d+)", task.question)]
    mine = next(number for number, one in customers.items() if one["name"] in task.question)
    return any(
        order["customer"] == mine and (order["days_since_delivery"] or 0) > RETURN_DAYS
        for order in wished
    )


@pytest.mark.slow
def test_a_clerk_who_keeps_the_rules_is_right_everywhere(tmp_path: Path) -> None:
    with ScriptedServer(scripted.script, token_ids=False) as model:
        record, rows = evaluated(tmp_path, model.base_url, 100)
    assert [row["reward"] for row in rows] == [1.0] * 100, [row["reward_reason"] for row in rows]
    assert record["result"]["outcomes"] == {"ok": 100} and not record["result"]["reward_flags"]
    assert {row["answer"] for row in rows} == {"It is done.", scripted.REFUSED}
    golds = [
        request for request in model.requests if '{"status": "cancelled"' in request.raw.decode()
    ]
    assert not golds, "the gold reached a model"


@pytest.mark.slow
def test_the_user_is_answered_elsewhere_and_a_careless_clerk_is_wrong_where_a_rule_forbids(
    tmp_path: Path,
) -> None:
    def careless(request: ReceivedRequest) -> Reply:
        """Takes everything back that was delivered, whenever that was."""
        last = request.messages[-1]
        wish = next(
            str(one["content"]) for one in reversed(request.messages) if one["role"] == "user"
        )
        if wish == "And then?":
            return Reply("Then nothing.")
        reply = scripted.clerk(request.messages)
        if (
            reply.text == scripted.REFUSED
            and "take back" in wish
            and '"delivered"' in str(last["content"])
        ):
            return calling(
                ("take_back", json.dumps({"order": json.loads(last["content"])["order"]}))
            )
        return reply

    def stubborn(request: ReceivedRequest) -> Reply:
        reply = scripted.customer(request.messages)
        return Reply("And then?") if reply.text == STOP else reply

    with (
        ScriptedServer(careless, token_ids=False) as agent,
        ScriptedServer(stubborn, token_ids=False) as user,
    ):
        user_role = f"roles.user={{endpoint: '{user.base_url}', model: scripted}}"
        record, rows = evaluated(tmp_path, agent.base_url, 30, user_role, "max_turns=4")
    assert record["identity"]["role_models"] == {"user": f"scripted at {user.base_url}"}
    assert agent.requests and all(request.body["tools"] for request in agent.requests)
    assert user.requests and not any("tools" in request.body for request in user.requests)
    assert all(
        request.messages[0]["content"].startswith("You are a person") for request in user.requests
    )
    private = ("Instructions:", "one after the other", "accept it")
    assert not any(words in request.raw.decode() for request in agent.requests for words in private)
    assert record["result"]["reward_flags"] == {NOT_ENDED: 30}, (
        "four turns are over, and judged as it stands"
    )
    assert record["result"]["outcomes"] == {"ok": 30}
    late = {task.id for task in OrderDeskTasks().load("val") if is_late(task)}
    assert (
        {row["task_id"] for row in rows if row["reward"] == 0}
        == late & {row["task_id"] for row in rows}
        != set()
    )
    assert {row["answer"] for row in rows} == {"Then nothing."}


@pytest.mark.slow
def test_the_commands_of_the_page_do_what_it_says(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "dialogues.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```console\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    check, serve, evaluate = (part.partition("\n") for part in block.split("$ ")[1:])

    def harness(command: str, *more: str) -> str:
        words = [sys.executable, "-m", *shlex.split(command), *more]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert harness(check[0]) == check[2]
    (script,) = re.findall(r"--script (\S+) --port", serve[0])
    assert script == f"{scripted.__name__}:{scripted.script.__name__}"
    with ScriptedServer(scripted.script, token_ids=False) as model:
        found = json.loads(
            harness(evaluate[0].replace("http://127.0.0.1:8001/v1", model.base_url), "--json")
        )
    assert (
        found["result"]["outcomes"] == {"ok": 8}
        and found["config"]["agent"] == "langgraph_dialogue"
    )
    assert "accuracy is 1" in page and found["result"]["accuracy"] == 1.0
