"""What one update is made of does not depend on the order in which rollouts arrive."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping

import numpy as np
import pytest
import torch

pytest.importorskip("verl")

from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import AdvantageEstimator

from harness_verl.advantages import best_of_group, grouped_advantages
from harness_verl.batches import Batches, Row, deal
from harness_verl.dealing import deal_to_ranks


def rows(tasks: int = 16, group: int = 4, seed: int = 0) -> list[Row]:
    """The calls of a step: one to three a rollout, of different lengths."""
    draw = random.Random(seed)
    return [
        Row(f"{position}_{session}_{call}", position, session, call, draw.randrange(100, 400))
        for position in range(tasks)
        for session in range(group)
        for call in range(draw.choice((1, 1, 2, 3)))
    ]


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_arrival_order_cannot_change_what_an_update_is_made_of(parts: int) -> None:
    calls = rows()
    first = deal(calls, seed=2, step=3, parts=parts)
    for arrival in range(20):
        shuffled = random.Random(arrival).sample(calls, len(calls))
        assert deal(shuffled, seed=2, step=3, parts=parts) == first


def test_whole_rollouts_share_an_optimizer_step_and_steps_are_equal() -> None:
    calls = rows()
    dealt = deal(calls, seed=0, step=1, parts=4)
    assert Counter(row for part in dealt for row in part) == Counter(calls)
    where = defaultdict(set)
    for number, part in enumerate(dealt):
        for row in part:
            where[row.position, row.session].add(number)
    assert all(len(numbers) == 1 for numbers in where.values())
    sizes = [len(part) for part in dealt]
    assert max(sizes) - min(sizes) <= 1, sizes  # rollouts of one row even them out


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_device_takes_whole_tasks_and_devices_have_nearly_equal_tokens(ranks: int) -> None:
    (part,) = deal(rows(tasks=32), seed=0, step=1, parts=1)
    shares = deal_to_ranks(part, ranks)
    assert Counter(row for share in shares for row in share) == Counter(part)
    devices_of_task = defaultdict(set)
    for rank, share in enumerate(shares):
        assert share == [row for row in part if row in share]  # in the order of the mini-batch
        for row in share:
            devices_of_task[row.position].add(rank)
    assert all(len(devices) == 1 for devices in devices_of_task.values())
    tokens = [sum(row.tokens for row in share) for share in shares]
    assert max(tokens) <= 1.05 * min(tokens), tokens


def test_fewer_tasks_than_devices_are_dealt_by_rollout() -> None:
    (part,) = deal(rows(tasks=1), seed=0, step=1, parts=1)
    shares = deal_to_ranks(part, 4)
    assert [{row.session for row in share} for share in shares] != [set()] * 4
    assert all(len({row.session for row in share}) == 1 for share in shares)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_rows_of_several_calls_change_nothing_of_which_rollouts_meet(parts: int) -> None:
    apart = rows()
    of: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in apart:
        of[row.position, row.session].append(row)
    merged = [Row(one[0].key, *name, 0, one[-1].tokens, len(one)) for name, one in of.items()]
    met = [
        [{(row.position, row.session) for row in part} for part in deal(some, 0, 1, parts)]
        for some in (merged, apart)
    ]
    assert met[0] == met[1] and len(merged) < len(apart)


def test_the_number_of_optimizer_steps_is_of_tasks_not_of_rows() -> None:
    short = [Row(f"{p}_{s}_0", p, s, 0, 10) for p in range(16) for s in range(4)]
    long = [Row(f"{p}_{s}_{c}", p, s, c, 10) for p in range(16) for s in range(4) for c in range(5)]
    assert len(deal(short, 0, 1, 2)) == len(deal(long, 0, 1, 2)) == 2


def test_seed_and_step_decide_which_rollouts_meet() -> None:
    calls = rows()
    one = [{row.key for row in part} for part in deal(calls, 0, 1, 4)]
    assert one != [{row.key for row in part} for part in deal(calls, 0, 2, 4)]
    assert one != [{row.key for row in part} for part in deal(calls, 1, 1, 4)]


def test_fewer_rollouts_than_optimizer_steps_leave_none_empty() -> None:
    assert [len(part) for part in deal(rows(tasks=1, group=2), 0, 1, 8)].count(0) == 0
    assert deal([], 0, 1, 8) == []


def test_advantages_by_hand() -> None:
    # Rewards 1, 0, 0, 1: mean 1/2, standard deviation (of a sample) sqrt(1/3).
    scores = {("a", str(session)): reward for session, reward in enumerate((1.0, 0.0, 0.0, 1.0))}
    expected = 0.5 / (3**-0.5 + 1e-6)
    found = grouped_advantages(scores, by_std=True)
    assert [found["a", str(s)] for s in range(4)] == pytest.approx(
        [expected, -expected, -expected, expected]
    )
    assert grouped_advantages(scores, by_std=False)["a", "0"] == pytest.approx(0.5)


def test_a_session_that_is_alone_has_no_advantage() -> None:
    found = grouped_advantages({("a", "0"): 1.0, ("b", "0"): 1.0, ("b", "1"): 0.0}, by_std=False)
    assert found["a", "0"] == 0.0  # verl's own: mean 0 and deviation 1, an advantage of 1
    assert (found["b", "0"], found["b", "1"]) == (0.5, -0.5)


def protocol(scores: list[float], tasks: list[str]) -> DataProto:
    """Rows of three response tokens, the last one masked in the first row."""
    mask = torch.ones(len(scores), 3)
    mask[0, 2] = 0
    rewards = torch.zeros(len(scores), 3)
    rewards[:, 1] = torch.tensor(scores)
    return DataProto.from_dict(
        {"response_mask": mask, "token_level_rewards": rewards},
        {"uid": np.array(tasks, dtype=object)},
    )


def test_the_baseline_is_over_all_scored_sessions_also_those_without_a_trained_row() -> None:
    batches = Batches()
    # Four rollouts of `a`: only session 2 rewrote, and only rewrites are trained; the others were right, right, wrong.
    batches._untrained = {("a", "0"): 1.0, ("a", "1"): 1.0, ("a", "3"): 0.0}
    data = protocol([0.0, 0.0], ["a", "a"])
    done = batches.advantages(
        data,
        ["a_2_0", "a_2_1"],
        AdvantageEstimator.GRPO,
        norm_adv_by_std_in_grpo=False,
        num_repeat=4,
    )
    assert done.batch["advantages"].tolist() == [[-0.5, -0.5, 0.0], [-0.5, -0.5, -0.5]]
    assert torch.equal(done.batch["returns"], done.batch["advantages"])


def test_all_calls_of_a_rollout_share_its_advantage_and_padding_has_none() -> None:
    batches = Batches()
    data = protocol([1.0, 1.0, 0.0, 0.0], ["a", "a", "a", "pad"])
    keys = ["a_0_0", "a_0_1", "a_1_0", "pad_0_0"]
    done = batches.advantages(data, keys, AdvantageEstimator.GRPO, norm_adv_by_std_in_grpo=False)
    assert done.batch["advantages"][:, 1].tolist() == [0.5, 0.5, -0.5, 0.0]


def credited(
    values: dict[str, dict[str, float]], rows: Mapping[str, str | list[tuple[str, int]]]
) -> Batches:
    """A step whose calls are paid by kind.

    Args:
        values: By task and session, `a_0`: what the calls of each kind are worth.
        rows: Key of each row and the kind of its call, or of each of its calls with its number of tokens.
    """
    batches = Batches(shared=False)
    batches._about = {
        key: {
            "calls": [(of, 3)] if isinstance(of, str) else of,
            "values": values[key.rsplit("_", 1)[0]],
        }
        for key, of in rows.items()
    }
    return batches


def test_each_call_of_a_row_has_the_advantage_of_its_kind() -> None:
    values = {"a_0": {"ask/0": 1.0, "ask/1": 0.0}, "a_1": {"ask/0": 0.0, "ask/1": 1.0}}
    batches = credited(
        values, {"a_0_0": [("ask/0", 1), ("ask/1", 2)], "a_1_0": [("ask/0", 3)], "a_1_1": "ask/1"}
    )
    data = protocol([1.0, 1.0, 1.0], ["a", "a", "a"])  # the first row's last token is masked
    done = batches.advantages(
        data, [*batches._about], AdvantageEstimator.GRPO, norm_adv_by_std_in_grpo=False
    )
    assert done.batch["advantages"].tolist() == [
        [0.5, -0.5, 0.0],
        [-0.5, -0.5, -0.5],
        [0.5, 0.5, 0.5],
    ]


def advantages(batches: Batches, keys: list[str], *, by_std: bool = False) -> dict[str, float]:
    data = protocol(
        [1.0] * len(keys), [key.split("_")[0] for key in keys]
    )  # rewards of rollouts pay nothing here
    done = batches.advantages(data, keys, AdvantageEstimator.GRPO, norm_adv_by_std_in_grpo=by_std)
    return dict(zip(keys, done.batch["advantages"][:, 1].tolist(), strict=True))


WRITE, CHECK, REWRITE, AGAIN = "write/0", "check/0", "rewrite/0", "rewrite/1"


def test_advantages_of_turns_by_hand() -> None:
    # Drafts 0, 1, 0, 1; the first rewrites rightly, the third wrongly and then rightly, which it does alone.
    values = {
        "a_0": {WRITE: 0.0, REWRITE: 1.0},
        "a_1": {WRITE: 1.0},
        "a_2": {WRITE: 0.0, REWRITE: 0.0, AGAIN: 1.0},
        "a_3": {WRITE: 1.0},
        "b_0": {WRITE: 1.0},
    }
    kinds = {
        "a_0": (WRITE, REWRITE),
        "a_1": (WRITE,),
        "a_2": (WRITE, REWRITE, AGAIN),
        "a_3": (WRITE,),
        "b_0": (WRITE,),
    }
    rows = {
        f"{session}_{call}": kind for session, of in kinds.items() for call, kind in enumerate(of)
    }
    expected = {
        "a_0_0": -0.5,
        "a_0_1": 0.5,
        "a_1_0": 0.5,
        "a_2_0": -0.5,
        "a_2_1": -0.5,
        "a_2_2": 0.0,
        "a_3_0": 0.5,
    }
    assert advantages(credited(values, rows), [*rows]) == {**expected, "b_0_0": 0.0}
    draft, rewrite = 0.5 / (3**-0.5 + 1e-6), 0.5 / (0.5**0.5 + 1e-6)
    found = advantages(credited(values, rows), [*rows, "pad_0_0"], by_std=True)
    assert [found[key] for key in ("a_1_0", "a_0_0", "a_0_1", "a_2_1")] == pytest.approx(
        [draft, -draft, rewrite, -rewrite]
    )
    assert found["pad_0_0"] == found["a_2_2"] == 0.0


def test_a_rollout_of_many_turns_weighs_no_more_in_a_baseline() -> None:
    one = {"a_0": {WRITE: 1.0}, "a_1": {WRITE: 0.0}}
    many = {**one, "a_1": {WRITE: 0.0, CHECK: 0.0, **{f"rewrite/{n}": 0.0 for n in range(9)}}}
    rows = {"a_0_0": WRITE, "a_1_0": WRITE}
    further = {f"a_1_{n + 1}": f"rewrite/{n}" for n in range(9)}
    long = credited(many, {**rows, **further})
    assert advantages(credited(one, rows), [*rows]) == {"a_0_0": 0.5, "a_1_0": -0.5}
    assert advantages(long, [*rows, *further]) == {
        "a_0_0": 0.5,
        "a_1_0": -0.5,
        **dict.fromkeys(further, 0.0),
    }


def test_calls_of_one_turn_share_its_advantage_as_with_a_shared_reward() -> None:
    values = {"a_0": {"ask/0": 1.0}, "a_1": {"ask/0": 0.0}}
    rows = dict.fromkeys(["a_0_0", "a_0_1", "a_0_2", "a_1_0"], "ask/0")
    found = advantages(credited(values, rows), [*rows])
    batches, data = Batches(), protocol([1.0, 1.0, 1.0, 0.0], ["a"] * 4)
    done = batches.advantages(data, [*rows], AdvantageEstimator.GRPO, norm_adv_by_std_in_grpo=False)
    assert [*found.values()] == done.batch["advantages"][:, 1].tolist() == [0.5, 0.5, 0.5, -0.5]


def test_baselines_of_turns_are_also_over_calls_without_a_row_and_leave_out_unscored_ones() -> None:
    # Session 1 was worth 1 and too long to train; session 2 has no score for its draft, only for its rewrite.
    values = {"a_0": {WRITE: 0.0}, "a_1": {WRITE: 1.0}, "a_2": {REWRITE: 1.0}}
    batches = credited(values, {"a_0_0": WRITE, "a_1_0": "", "a_2_0": REWRITE})
    assert advantages(batches, ["a_0_0", "a_2_0"]) == {"a_0_0": -0.5, "a_2_0": 0.0}


def test_the_best_of_a_group_are_chosen_where_they_are_good_enough() -> None:
    scores = {
        "two are best": (1.0, 0.0, 1.0),
        "all are right": (1.0, 1.0),
        "none is": (0.4, 0.0),
        "just so": (0.7, 0.69),
        "alone": (1.0,),
    }
    named = {(group, str(at)): score for group, of in scores.items() for at, score in enumerate(of)}
    chosen = {name for name, value in best_of_group(named, least=0.7).items() if value}
    expected = [
        ("two are best", "0"),
        ("two are best", "2"),
        ("all are right", "0"),
        ("all are right", "1"),
    ]
    assert chosen == {*expected, ("just so", "0"), ("alone", "0")}
    of_a_batch = {name: float(torch.tensor(score)) for name, score in named.items()}
    assert best_of_group(of_a_batch, least=0.7) == best_of_group(named, least=0.7)


def test_the_best_may_be_a_session_without_a_row() -> None:
    batches = Batches(threshold=0.5)
    batches._untrained = {("a", "1"): 1.0}
    done = batches.advantages(
        protocol([0.6, 1.0], ["a", "b"]), ["a_0_0", "b_0_0"], AdvantageEstimator.GRPO
    )
    assert done.batch["advantages"][:, 1].tolist() == [0.0, 1.0]


def test_of_each_kind_the_best_calls_are_chosen() -> None:
    values = {
        "a_0": {WRITE: 0.0, REWRITE: 1.0},
        "a_1": {WRITE: 1.0, REWRITE: 0.0},
        "a_2": {WRITE: 0.0},
    }
    rows = {"a_0_0": WRITE, "a_0_1": REWRITE, "a_1_0": WRITE, "a_1_1": REWRITE, "a_2_0": WRITE}
    batches = credited(values, rows)
    batches._threshold = 0.5
    assert advantages(batches, [*rows]) == {
        "a_0_0": 0.0,
        "a_0_1": 1.0,
        "a_1_0": 1.0,
        "a_1_1": 0.0,
        "a_2_0": 0.0,
    }
