"""Whole evaluations of tau2 over real HTTP: a scripted customer, and an agent that plays what the gold has."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from harness import Task
from harness.mock_model.server import ReceivedRequest, Reply, ScriptedServer
from harness_dialogues.prompts import STOP
from harness_sql.tool_loop.scenarios import calling
from harness_tau2.tasks import Tau2Tasks

GoldOf = Callable[[Task], list[tuple[str, Mapping[str, Any]]]]
FRAMEWORKS = ("langgraph_dialogue", "openai_agents_dialogue")
Script = Callable[[ReceivedRequest], Reply]


def harness(*words: str) -> Any:
    command = [sys.executable, "-m", "harness", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def evaluated(
    runs: Path, data: Path, agent: str, script: Script, *more: str
) -> tuple[dict[str, Any], dict[str, dict[str, Any]], ScriptedServer]:
    """The record of an evaluation, its rows by task, and the model that was asked."""
    with ScriptedServer(script, token_ids=False) as model:
        words = [
            "eval",
            "--preset",
            "tau2",
            "--agent",
            agent,
            "--endpoint",
            model.base_url,
            "--runs-dir",
            str(runs),
        ]
        settings = (f"task.options.data_dir={data}", "rollout.runners=1")
        record = harness(*words, *(word for one in settings for word in ("--set", one)), *more)
    (run,) = runs.iterdir()
    rows = pyarrow.parquet.read_table(run / "episodes.parquet").to_pylist()
    return record, {row["task_id"]: row for row in rows}, model


def playing(tasks: list[Task], gold_of: GoldOf) -> Script:
    """A customer who says which one it is, and an agent who does and says what that task's gold has."""
    known = {
        task.id: (task.question, gold_of(task), json.loads(task.gold)["said"]) for task in tasks
    }

    def script(request: ReceivedRequest) -> Reply:
        if "tools" not in request.body:
            prompt = str(request.messages[0]["content"])
            (mine,) = [id for id, (question, _, _) in known.items() if question in prompt]
            return Reply(STOP if len(request.messages) > 2 else f"I am customer {mine}.")
        first = next(str(one["content"]) for one in request.messages if one["role"] == "user")
        _, actions, texts = known[re.findall(r"I am customer (.*)\.", first)[0]]
        done = sum(bool(one.get("tool_calls")) for one in request.messages)
        if done < len(actions):
            name, arguments = actions[done]
            return calling((name, json.dumps(arguments)))
        return Reply(f"Done. {'; '.join(texts)}.")

    return script


@pytest.mark.slow
def test_a_dialogue_that_plays_the_gold_is_right_in_frameworks(
    library: Path, gold_of: GoldOf, tmp_path: Path
) -> None:
    tasks = list(Tau2Tasks(data_dir=library).load("base"))
    sent = {}
    for agent in ("reference_dialogue", *FRAMEWORKS):
        record, rows, model = evaluated(
            tmp_path / agent, library, agent, playing(tasks, gold_of), "--split", "base"
        )
        assert {id: row["reward"] for id, row in rows.items()} == {
            task.id: 1.0 for task in tasks
        }, agent
        assert record["result"]["outcomes"] == {"ok": 6} and not record["result"]["reward_flags"]
        requests = [request.raw.decode() for request in model.requests]
        golds = [
            digest for task in tasks for digest in (json.loads(task.gold)["changes"] or {}).values()
        ]
        assert golds and not [text for text in requests for gold in golds if gold in text], (
            "gold reached a model"
        )
        talks = [request for request in model.requests if "tools" in request.body]
        assert all("The hours are no secret" in request.messages[0]["content"] for request in talks)
        assert not [text for text in requests if '"tools"' in text and "You are Ana." in text]
        sent[agent] = sorted(json.dumps(request.messages, sort_keys=True) for request in talks)
    assert all(messages == sent["reference_dialogue"] for messages in sent.values())


@pytest.mark.slow
def test_an_agent_that_only_talks_is_wrong_where_something_was_to_be_done(
    library: Path, tmp_path: Path
) -> None:
    def talks(request: ReceivedRequest) -> Reply:
        if "tools" not in request.body:
            return Reply(STOP if len(request.messages) > 2 else "Hello.")
        return Reply("From nine to 17. We are open.")

    _, rows, _ = evaluated(tmp_path, library, "reference_dialogue", talks, "--split", "base")
    right = {id.removeprefix("library/") for id, row in rows.items() if row["reward"] == 1.0}
    assert right == {"nothing", "say"} and {row["reward"] for row in rows.values()} == {0.0, 1.0}
    assert rows["library/lend"]["reward_reason"] == "books/1 not as it should be"
    assert rows["library/words"]["reward_reason"] == "not stated to the user: 'closed'"


@pytest.mark.slow
def test_an_attempt_whose_side_process_dies_is_tried_again_and_unscored(
    library: Path, gold_of: GoldOf, tmp_path: Path
) -> None:
    tasks = list(Tau2Tasks(data_dir=library).load("val"))
    plays = playing(tasks, gold_of)
    fatal: list[str] = []

    def script(request: ReceivedRequest) -> Reply:
        if "tools" in request.body and "customer library/both." in str(request.messages):
            fatal.append("died")
            return calling(("calculate", '{"expression": "die"}'))
        return plays(request)

    one_at_a_time = (
        "--split",
        "val",
        "--set",
        "rollout.concurrency=1",
    )  # attempts at once share what dies
    record, rows, _ = evaluated(tmp_path, library, "reference_dialogue", script, *one_at_a_time)
    assert record["result"]["outcomes"] == {"ok": 3, "environment_error": 1} and len(fatal) == 2
    assert {row["reward"] for id, row in rows.items() if id != "library/both"} == {1.0}
    assert rows["library/both"]["reward"] is None
    assert (
        "the subprocess of 'library': it ended (last stderr line: out of paper)"
        in rows["library/both"]["detail"]
    )


@pytest.mark.slow
def test_a_dry_run_shows_what_became_of_it(library: Path, gold_of: GoldOf) -> None:
    tasks = list(Tau2Tasks(data_dir=library).load("val"))
    with ScriptedServer(playing(tasks, gold_of), token_ids=False) as model:
        words = ["dev", "--agent", "openai_agents_dialogue", "--task", "tau2", "--tasks", "2"]
        settings = [f"task.options.data_dir={library}", "reward.name=tau2", "max_turns=5"]
        shown = harness(
            *words,
            "--endpoint",
            model.base_url,
            *(word for one in settings for word in ("--set", one)),
        )
    verdicts = [one["verdict"] for one in shown]
    assert [(one["value"], one["reason"]) for one in verdicts] == [
        (1.0, "all is as it should be")
    ] * 2
    assert all(len(one["spans"]) > 2 for one in shown)


@pytest.mark.slow
def test_the_benchmarks_tools_are_listed(fetched: Path) -> None:
    found = harness("data", "check", "--task", "tau2")
    assert found["ok"] and found["counts"] == {"train": 104, "val": 60}
    assert len(found["tools"]) == 15 + 14 - 2, "two are of both"
    assert not [tool for tool in found["tools"] if tool["problem"]]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("domain", "agent"), zip(["retail", "airline"], FRAMEWORKS, strict=True))
def test_the_benchmarks_gold_is_right_in_a_dialogue(
    fetched: Path, gold_of: GoldOf, tmp_path: Path, agent: str, domain: str
) -> None:
    tasks = list(Tau2Tasks(domain, fetched).load("val"))
    more = ("--set", f"task.options.domain={domain}", "--split", "val", "--limit", "8")
    record, rows, model = evaluated(tmp_path, fetched, agent, playing(tasks, gold_of), *more)
    assert {row["reward"] for row in rows.values()} == {1.0}, [
        row["reward_reason"] for row in rows.values()
    ]
    assert record["result"]["outcomes"] == {"ok": 8}
    policy = (fetched / f"inspect_evals/tau2/data/domains/{domain}/policy.txt").read_text().strip()
    talks = [request for request in model.requests if "tools" in request.body]
    assert talks and all(policy in request.messages[0]["content"] for request in talks)
