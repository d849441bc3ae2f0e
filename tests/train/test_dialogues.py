"""A real training of an agent that calls tools: its dialogues are rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytest.importorskip("verl")

from harness.mock_model.server import ReceivedRequest, ScriptedServer
from scripted_policies import scripted_policy

from .test_training import start

pytestmark = [pytest.mark.train, pytest.mark.timeout(900)]

CALL = '<tool_call>\n{"name": "query_database", "arguments": {"sql": "SELECT 1"}}\n</tool_call>'
SHARES = {CALL: 0.6, "3": 0.4}
"""What the policy says at first, and how often."""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return scripted_policy(SHARES, tmp_path / "policy")


def trained(
    policy: Path, tmp_path: Path, shared: Mapping[str, str], agent: str, role: str, *more: str
) -> Path:
    """The folder of a run of two steps that trains one role of an agent."""
    runs, log = tmp_path / "runs", tmp_path / "log"
    few = (
        "train.batch_size=4",
        "train.val_every=0",
        "task.val_limit=4",
        "max_turns=3",
        "device=cpu",
    )
    room = (
        "sampling.max_prompt_tokens=2048",
        "sampling.max_response_tokens=4",
        "reward.name=executes",
    )
    # The end's weights are alike in all columns: Adam makes of a gradient that is noise a step that is none, and a
    # large one lets a policy end before its first word.
    slow = "train.learning_rate=1e-6"
    settings = [
        part
        for one in (*few, *room, slow, f"policy.path={policy}", *more)
        for part in ("--set", one)
    ]
    chosen = ("--plugin", agent, "--agent-match", role, "--steps", "2")
    done = start(*chosen, "--runs-dir", runs, *settings, log=log, variables=shared).wait(600)
    assert done == 0, log.read_text()[-3000:]
    (run,) = runs.iterdir()
    return run


def test_dialogues_are_rows_of_what_was_said(
    policy: Path, tmp_path: Path, shared: Mapping[str, str]
) -> None:
    run = trained(policy, tmp_path, shared, "reference_tools", "assistant")
    assert json.loads((run / "run.json").read_text())["identity"]["train"]["merged"] is True

    episodes = pq.read_table(run / "episodes.parquet").to_pylist()
    assert {row["outcome"] for row in episodes} == {"ok"}
    called = {
        row["attempt_id"]: json.loads(row["tool_calls"])
        for row in episodes
        if row["phase"] == "train"
    }
    tools = [call for calls in called.values() for call in calls]
    assert tools and all(call["ok"] and call["arguments"] == {"sql": "SELECT 1"} for call in tools)

    conversations: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in pq.read_table(run / "transitions.parquet").to_pylist():
        if row["phase"] == "train":
            conversations.setdefault((row["step"], row["attempt_id"]), []).append(row)
    steps = {row["step"]: row for row in pq.read_table(run / "steps.parquet").to_pylist()}
    for step in (1, 2):
        dialogues = [
            sorted(rows, key=lambda row: row["index"])
            for (at, _), rows in conversations.items()
            if at == step
        ]
        pairs = [pair for rows in dialogues for pair in pairwise(rows)]
        assert pairs
        for one, after in pairs:
            so_far = one["prompt_ids"] + one["response_ids"]
            assert after["prompt_ids"][: len(so_far)] == so_far
        logged = steps[step]
        assert (logged["training/calls"], logged["training/rows"]) == (sum(map(len, dialogues)), 16)
        assert (logged["training/merged_calls"], logged["training/unmerged_calls"]) == (
            len(pairs),
            0,
        )
        last = [rows[-1] for rows in dialogues]
        assert logged["training/tokens"] == sum(
            len(row["prompt_ids"]) + len(row["response_ids"]) for row in last
        )
        earlier = sum(len(one["prompt_ids"]) + len(one["response_ids"]) for one, _ in pairs)
        assert logged["training/saved_tokens"] == earlier
        # The engine's log-probabilities, call by call, and the trainer's, of whole rows.
        assert logged["training/rollout_probs_diff_max"] < 1e-3
    assert steps[1]["actor/grad_norm"] > 0


def test_a_user_of_another_model_is_heard_and_not_trained(
    policy: Path, tmp_path: Path, shared: Mapping[str, str]
) -> None:
    def user(request: ReceivedRequest) -> str:
        return {2: "How many?", 4: "And now?"}.get(len(request.messages), "###STOP###")

    with ScriptedServer(user, token_ids=False) as server:
        answers = f"roles.user={{endpoint: '{server.base_url}', model: scripted}}"
        run = trained(policy, tmp_path, shared, "reference_dialogue", "agent", answers)
    episodes = pq.read_table(run / "episodes.parquet").to_pylist()
    assert {row["outcome"] for row in episodes} == {"ok"}
    rows = [
        row
        for row in pq.read_table(run / "transitions.parquet").to_pylist()
        if row["phase"] == "train"
    ]
    asked = [row for row in rows if row["role"] == "user"]
    assert len(asked) <= len(server.requests) and {row["response_ids"] for row in asked} == {None}
    replies = [row for row in rows if row["role"] == "agent"]
    assert len(replies) > 32 and any("And now?" in str(row["messages"]) for row in replies), (
        "of some, a second turn"
    )
    assert not any("Instructions" in str(row["messages"]) for row in replies)
    steps = pq.read_table(run / "steps.parquet").to_pylist()
    for step in steps[-2:]:
        calls = [row for row in replies if row["step"] == step["step"]]
        assert (step["training/calls"], step["training/rows"]) == (len(calls), 16)
        assert step["training/unmerged_calls"] == 0, "a second turn goes on from the first"
        assert step["training/rollout_probs_diff_max"] < 1e-3
