"""Rows of several calls: an update's gradients are those of a row a call, from what verl is handed to verl's loss."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl")

import numpy as np
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from transformers import Qwen2Config
from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import AdvantageEstimator
from verl.utils import tensordict_utils
from verl.workers.config import ActorConfig
from verl.workers.config.actor import PolicyLossConfig
from verl.workers.utils.losses import ppo_loss

from harness.records import Transition
from harness_verl import batches
from harness_verl.batches import Batches
from harness_verl.names import ABOUT, ON_POLICY, PACKED
from harness_verl.rows import DialogueRow, rows_of

from .test_packing import SHAPE, engine
from .test_rows import call

REWARDS = (1.0, 0.0, 0.5, 0.0)
"""By session."""


def rollouts() -> dict[str, list[Transition]]:
    """Two tasks by four sessions of one to three calls; the last one's second call does not go on from its first."""
    draw = random.Random(5)

    def some(least: int, most: int) -> list[int]:
        return [draw.randrange(61) for _ in range(draw.randint(least, most))]

    made: dict[str, list[Transition]] = {}
    for task in (0, 1):
        for session, count in enumerate((1, 2, 3, 3)):
            prompt, calls = some(4, 9), made.setdefault(f"t{task}_{session}", [])
            for index in range(count):
                calls.append(call(index, prompt, some(2, 6)))
                broken = (task, session, index) == (1, 3, 0)
                prompt = [*prompt, *(calls[-1].response_ids or ())[broken:], *some(session > 0, 5)]
    return made


class Queue:
    """In the place of TransferQueue: the rows of all rollouts, by key."""

    def __init__(self, *, merge: bool) -> None:
        self.rows: dict[str, DialogueRow] = {}
        self.about: dict[str, dict[str, Any]] = {}
        for name, calls in rollouts().items():
            values = {
                f"ask/{index}": (REWARDS[int(name[-1])] + index) % 1.5
                for index in range(len(calls))
            }
            for number, row in enumerate(rows_of(calls, merge=merge)):
                kinds = [
                    [f"ask/{one}", size] for one, size in zip(row.calls, row.sizes, strict=True)
                ]
                self.rows[f"{name}_{number}"] = row
                self.about[f"{name}_{number}"] = {"calls": kinds, "values": values}
                self.about[f"{name}_{number}"] |= {"saved": row.saved, "again": row.again}

    def kv_batch_get(
        self, keys: list[str], select_fields: list[str], **_: Any
    ) -> dict[str, list[Any]]:
        if select_fields == ["index"]:
            return {"index": [int(key[1]) for key in keys]}
        return {"extra_fields": [{ABOUT: self.about[key]} for key in keys]}

    def fill(self, batch: KVBatchMeta, multiple: int, _: int) -> KVBatchMeta:
        """With rows that are masked whole, as verl does."""
        keys = [f"pad_{number}_0" for number in range(-len(batch.keys) % multiple)]
        for key in keys:
            (self.rows[key],) = rows_of([call(0, [0] * 5, [0])], merge=False)
            self.rows[key].response_mask = [0]
        return KVBatchMeta(
            [*batch.keys, *keys], [*batch.tags, *({} for _ in keys)], "train", None, {}
        )


def dealt(
    queue: Queue,
    credit: str,
    merge: bool,
    parts: int,
    threshold: float | None = None,
    rewards: Sequence[float] = REWARDS,
    ranks: int = 1,
    taught: bool = False,
) -> tuple[list[list[str]], torch.Tensor, dict[str, float]]:
    """Keys by device and optimizer step, the advantages of all rows in that order, and what is logged."""
    made = Batches(shared=credit == "shared", merges=merge, threshold=threshold, taught=taught)
    metrics = dict[str, float]()
    rollout = {"log_prob_use_dynamic_bsz": True}
    actor = {"ppo_mini_batch_size": 2 // parts, "ppo_epochs": 1, "use_dynamic_bsz": True}
    config = {
        "trainer": {"v1": {"trainer_mode": "sync"}},
        "data": {"seed": 3, "train_batch_size": 2},
        "actor_rollout_ref": {"actor": actor, "rollout": rollout},
    }
    trainer = SimpleNamespace(
        global_steps=1,
        tokenizer=SimpleNamespace(eos_token_id=0),
        actor_rollout_wg=SimpleNamespace(
            _dispatch_info={"actor": [*range(ranks)]}, update_actor=None
        ),
        config=OmegaConf.create(config),
    )
    tags = [
        {
            "prompt_len": len(row.prompt_ids),
            "response_len": len(row.response_ids),
            "seq_len": len(row),
        }
        for row in queue.rows.values()
    ]
    filled = made.balance(trainer, KVBatchMeta([*queue.rows], tags, "train", None, {}), metrics)
    keys = filled.keys
    rows = [queue.rows[key] for key in keys]
    mask = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(row.response_mask) for row in rows], batch_first=True
    )
    scores = torch.zeros(mask.shape)
    scores[:, 0] = torch.tensor(
        [0.0 if key.startswith("pad") else rewards[int(key[3])] for key in keys]
    )
    data = DataProto.from_dict(
        {"response_mask": mask, "token_level_rewards": scores},
        {"uid": np.array(keys, dtype=object)},
    )
    found = made.advantages(data, keys, AdvantageEstimator.GRPO).batch["advantages"]

    def updated(*_: Any) -> KVBatchMeta:
        metrics["actor/pg_loss"] = 0.25
        return filled

    made.update(trainer, updated, filled, metrics)
    size = len(keys) // (parts * ranks)
    return [keys[start : start + size] for start in range(0, len(keys), size)], found, metrics


def gradients(
    queue: Queue,
    steps: list[list[str]],
    advantages: torch.Tensor,
    packed: bool,
    several: str = "vanilla",
    one: str = ON_POLICY,
) -> list[list[torch.Tensor]]:
    """Of every parameter, by optimizer step; micro-batches of three rows. `one`, `several`: the loss of so many steps."""
    loss = PolicyLossConfig(loss_mode=one if len(steps) == 1 else several)
    config = ActorConfig(strategy="fsdp2", rollout_n=1, use_dynamic_bsz=True, policy_loss=loss)
    values = iter(advantages)
    found = []
    for keys in steps:
        model = engine(Qwen2Config(**SHAPE), PACKED if packed else "sdpa")
        tokens = sum(sum(queue.rows[key].response_mask) for key in keys)
        for start in range(0, len(keys), 3):
            rows = [queue.rows[key] for key in keys[start : start + 3]]
            columns: dict[str, list[Any]] = {
                "prompts": [row.prompt_ids for row in rows],
                "responses": [row.response_ids for row in rows],
                "input_ids": [row.prompt_ids + row.response_ids for row in rows],
                "position_ids": [range(len(row)) for row in rows],
                "response_mask": [row.response_mask for row in rows],
                "old_log_probs": [row.logprobs for row in rows],
                "advantages": [next(values)[: len(row.response_ids)].tolist() for row in rows],
            }
            jagged = {
                name: torch.nested.as_nested_tensor(
                    [torch.tensor([*one]) for one in column], layout=torch.jagged
                )
                for name, column in columns.items()
            }
            micro = TensorDict(jagged, batch_size=len(rows))
            tensordict_utils.assign_non_tensor(
                micro,
                use_remove_padding=packed,
                temperature=1.0,
                dp_size=1,
                batch_num_tokens=tokens,
            )
            tensordict_utils.assign_non_tensor(micro, global_batch_size=len(keys))
            inputs, arguments = model.prepare_model_inputs(micro)
            if packed:
                asked = sum(max(sum(row.response_mask), 1) for row in rows)
                assert len(inputs["logits_to_keep"]) == asked, "logits of what came between"
            output = model.prepare_model_outputs(
                model.module(**inputs, use_cache=False), arguments, micro, None
            )
            ppo_loss(config, output, micro)[0].backward()
        found.append([value.grad for value in model.module.parameters()])
    return found


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("credit", ["shared", "turn"])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_merged_rows_have_the_gradients_of_a_row_a_call(
    monkeypatch: pytest.MonkeyPatch, packed: bool, credit: str, parts: int
) -> None:
    found = {}
    for merge in (True, False):
        queue = Queue(merge=merge)
        monkeypatch.setattr(batches, "tq", queue)
        monkeypatch.setattr(batches, "upsample_batch_to_divisible_size", queue.fill)
        steps, advantages, metrics = dealt(queue, credit, merge, parts)
        met = [{key[:4] for key in keys if key in queue.about} for keys in steps]
        found[merge] = met, gradients(queue, steps, advantages, packed), metrics
    assert (
        found[True][0] == found[False][0] and len(found[True][0]) == parts
    )  # the same rollouts meet
    for ours, theirs in zip(found[True][1], found[False][1], strict=True):
        assert max(float(value.abs().max()) for value in theirs) > 1e-2
        for one, other in zip(ours, theirs, strict=True):
            assert torch.allclose(one, other, atol=1e-5, rtol=1e-5), (one - other).abs().max()
    calls, logged = sum(map(len, rollouts().values())), found[True][2]
    assert (logged["training/calls"], logged["training/rows"]) == (calls, 9) == (18, 9)
    assert (logged["training/merged_calls"], logged["training/unmerged_calls"]) == (9, 1)
    whole = sum(len(row) for row in Queue(merge=False).rows.values())
    assert logged["training/tokens"] + logged["training/saved_tokens"] == whole
    assert found[False][2]["training/rows"] == calls and "training/calls" not in found[False][2]


@pytest.mark.parametrize("parts", [1, 2])
def test_two_devices_take_whole_tasks_of_every_optimizer_step(
    parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(merge=False)
    monkeypatch.setattr(batches, "tq", queue)
    monkeypatch.setattr(batches, "upsample_batch_to_divisible_size", queue.fill)
    cut, _, metrics = dealt(queue, "shared", False, parts, ranks=2)
    real = [
        [key for key in keys if key in queue.rows and not key.startswith("pad")] for keys in cut
    ]
    assert sorted(key for keys in real for key in keys) == sorted(queue.about)
    assert len({len(keys) for keys in cut}) == 1  # every device takes as many rows
    tasks = [{key.split("_")[0] for key in keys} for keys in real]
    assert all(len(of_device) == 1 for of_device in tasks), tasks
    assert metrics["training/padding_rows"] == len(cut) * len(cut[0]) - len(queue.about)
