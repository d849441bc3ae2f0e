"""The search: what enters the pool, who tries what, and who is dropped when."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.config import load_config
from harness.errors import ConfigError
from harness.testing.calls import transition
from harness_demonstrations.options import refuse
from harness_demonstrations.search import (
    Demonstration,
    Rollout,
    Search,
    collect,
    draw,
    last_steps,
)


def call(role: str, reply: str, index: int = 0, **fields: Any) -> Any:
    messages = ({"role": "system", "content": "s"}, {"role": "user", "content": f"{role}?"})
    return transition(role, index, **{"messages": messages, "response_text": reply, **fields})


def rollout(task: str, session: int, reward: float | None, *calls: Any, more: int = 0) -> Rollout:
    return Rollout(task, session, reward, calls, len(calls) + more)


def pool_of(size: int) -> dict[str, list[Demonstration]]:
    every = []
    for number in range(size):
        user = {"role": "user", "content": f"question {number}"}
        every.append(Demonstration(f"task{number}", user, f"reply {number}"))
    return {"write": every}


def search_of(candidates: int) -> Search:
    pool = pool_of(candidates)
    return Search.begin(pool, [{"write": [number]} for number in range(candidates)])


def test_the_pool_has_one_call_of_each_task_and_role_with_the_highest_reward() -> None:
    pool = collect(
        [
            rollout("a", 0, 1.0, call("write", "long"), call("check", "ok"), more=1),
            rollout("a", 1, 1.0, call("write", "short")),
            rollout("a", 2, 0.5, call("write", "half right")),
            rollout("b", 0, None, call("write", "unscored")),
            rollout("c", 0, 0.0, call("write", "wrong")),
            rollout("d", 0, 1.0, call("write", "first"), call("write", "last", 1)),
            rollout("d", 1, 1.0, call("write", "later session"), more=1),
        ],
        low=0.0,
    )
    replies = {}
    for role, shown in pool.items():
        replies[role] = [(one.task, one.reply) for one in shown]
    # The rollout with fewer calls goes first; a role that it lacks comes from another one.
    assert replies == {"write": [("a", "short"), ("d", "last")], "check": [("a", "ok")]}
    assert pool["check"][0].messages() == [
        {"role": "user", "content": "check?"},
        {"role": "assistant", "content": "ok"},
    ]


def test_calls_that_show_nothing_are_left_out() -> None:
    tool = {"id": "0", "function": {"name": "look", "arguments": "{}"}}
    question = {"role": "user", "content": "How many?"}
    asks = {"role": "assistant", "content": None, "tool_calls": [tool]}
    within = (question, asks, {"role": "tool", "tool_call_id": "0", "content": "3"})
    later = (question, {"role": "assistant", "content": "3"}, {"role": "user", "content": "Sure?"})
    unusable = [
        call("write", " "),
        call("write", "text", 1, tool_calls=(tool,)),
        call("write", "text", 2, messages=({"role": "system", "content": "s"},)),
        call("write", "text", 3, messages=within),
        call("write", "text", 4, messages=later),
    ]
    assert collect([rollout("a", 0, 1.0, *unusable)], low=0.0) == {}


@pytest.mark.parametrize("rewards", [[0.0, 0.0], [None, 0.0], [None], []])
def test_wrong_replies_are_no_demonstrations(rewards: list[float | None]) -> None:
    rollouts = []
    for number, reward in enumerate(rewards):
        rollouts.append(rollout("a", number, reward, call("write", "wrong")))
    assert collect(rollouts, low=0.0) == {}
    assert draw({}, 8, 3, 0) == [{}]


def test_candidates_follow_from_the_seed_and_equal_ones_count_once() -> None:
    drawn = draw(pool_of(10), 8, 3, seed=1)
    assert drawn == draw(pool_of(10), 8, 3, seed=1)
    assert drawn != draw(pool_of(10), 8, 3, seed=2)
    assert drawn[0] == {} and len(drawn) == 9
    for candidate in drawn[1:]:
        assert len(set(candidate["write"])) == 3
    assert draw(pool_of(1), 8, 3, seed=1) == [{}, {"write": [0]}]


def test_rollouts_go_round_the_survivors() -> None:
    search = search_of(5)
    search.survivors = [0, 2, 4]
    tried = []
    for position in range(2):
        for session in range(4):
            tried.append(search.candidate_for(position, session, group_size=4))
    assert tried == [0, 2, 4, 0, 2, 4, 0, 2]


@pytest.mark.parametrize(
    ("steps", "candidates", "ends"),
    [
        (20, 9, [6, 11, 16, 20]),
        (5, 9, [2, 3, 4, 5]),
        (3, 9, [2, 3, 3, 3]),
        (2, 3, [2, 2]),
        (8, 1, []),
        (8, 2, [8]),
    ],
)
def test_rounds_are_about_equally_long(steps: int, candidates: int, ends: list[int]) -> None:
    assert last_steps(steps, candidates) == ends


@pytest.mark.parametrize("candidates", range(1, 40))
def test_one_candidate_is_left_in_the_end(candidates: int) -> None:
    search = search_of(candidates)
    for _ in last_steps(2, candidates):
        search.halve()
    assert search.survivors == [0]


def test_the_half_with_the_lowest_means_is_dropped() -> None:
    search = search_of(5)
    rewards = {0: [0.0, 1.0], 1: [1.0, 1.0], 2: [0.0], 3: [1.0, 0.0], 4: [0.0, None, None]}
    for candidate, given in rewards.items():
        for reward in given:
            search.note(candidate, reward)
    assert [search.mean(number) for number in range(5)] == [0.5, 1.0, 0.0, 0.5, 0.0]
    assert search.leader == 1
    search.halve()
    assert search.survivors == [0, 1, 3]
    # Of two equal means the lower number stays.
    search.halve()
    assert search.survivors == [0, 1]


def test_unscored_rollouts_are_no_zeros() -> None:
    search = search_of(3)
    for candidate, reward in ((0, 0.4), (1, 1.0), (1, None), (1, None), (2, None)):
        search.note(candidate, reward)
    assert (search.mean(1), search.mean(2)) == (1.0, None)
    search.halve()
    # The one of which nothing is known goes first, also before a mean of 0.4.
    assert search.survivors == [0, 1] and search.leader == 1


def test_before_any_rollout_the_prompts_without_demonstrations_lead() -> None:
    assert Search.begin(pool_of(4), draw(pool_of(4), 3, 1, 0)).leader == 0


def test_a_task_is_not_shown_its_own_answer() -> None:
    search = Search.begin(pool_of(3), [{}, {"write": [0, 2]}])
    everything = search.demonstrations(1)["write"]
    assert [pair[1]["content"] for pair in everything] == ["reply 0", "reply 2"]
    others = search.demonstrations(1, "task2")["write"]
    assert [pair[1]["content"] for pair in others] == ["reply 0"]
    assert search.demonstrations(0) == {}


def test_a_state_that_was_written_continues_exactly() -> None:
    search = Search.begin(pool_of(6), draw(pool_of(6), 4, 2, 7))
    search.note(1, 0.1)
    search.note(1, 0.2)
    search.halve()
    read = Search.parse(json.loads(json.dumps(search.dump())))
    assert read == search
    for one in (search, read):
        one.note(1, 0.7)
        one.halve()
    assert read == search and read.mean(1) == search.mean(1)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.algorithm=rejection", "train.algorithm='rejection'"),
        ("train.credit=turn", "train.credit='turn'"),
        ("train.failed_rollouts=leave_out", "train.failed_rollouts='leave_out'"),
        ("train.loggers=[wandb]", "train.loggers"),
        ("gpus=2", "gpus=2"),
        ("ray_address=auto", "ray_address='auto'"),
        ("verl.actor_rollout_ref.model.lora_rank=8", "verl.actor_rollout_ref.model.lora_rank"),
        ("train.candidates=64", "65 candidates, and a step has only 64 rollouts"),
        ("agent=[reference_sql, langgraph_sql]", "reference_sql,langgraph_sql mixes agents"),
        ("agent=reference_tools", "the program 'tool_loop' of reference_tools calls tools"),
    ],
)
def test_what_would_be_ignored_is_refused(setting: str, message: str) -> None:
    settings = ["agent=reference_sql", "train.trainer=demonstrations", setting]
    config = load_config("cpu", None, settings)
    with pytest.raises(ConfigError, match=message):
        refuse(config)


def test_lora_is_an_unknown_option() -> None:
    settings = ["train.trainer=demonstrations", "train.lora_rank=8"]
    with pytest.raises(ConfigError, match="unknown configuration key 'train.lora_rank'"):
        load_config("cpu", None, settings, agent="reference_sql")


@pytest.mark.parametrize("preset", ["cpu", "gpu", "qwen-1.5b", "lora", "fast"])
def test_presets_for_other_trainers_fit(preset: str) -> None:
    refuse(load_config(preset, None, ["train.trainer=demonstrations"], agent="reference_sql"))
