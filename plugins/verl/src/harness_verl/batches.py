"""Compose each update of the same rollouts in the same order and number of optimizer steps.

verl cuts a step's rows into mini-batches in order of arrival and fills up the last one. A
framework's speed then decides which calls share an optimizer step, and long conversations take
more steps. Here:

- rows are ordered by (position of the task in the run's order, session, call); whole rollouts are
  then permuted by a hash of the run's seed and the training step;
- a training step takes `batch_size / mini_batch_size` optimizer steps (tasks, not rows), and whole
  rollouts are distributed among them so that each has nearly the same number of rows;
- within an optimizer step, each device takes whole tasks, so that their rollouts share prompts,
  with nearly as many tokens as the other devices;
- GRPO's baseline covers all scored sessions of a task, also those without a trained row; a session
  that is alone has no baseline and an advantage of 0 (in verl: its raw reward);
- with credit by turn or role, the baseline covers the calls of one kind instead, with one value per
  session;
- a row of several calls (`rows.py`) counts as that many calls when rollouts are distributed, so
  that merging does not change which rollouts meet;
- `train.algorithm: rejection` keeps all of this, but only a group's best rollouts have an
  advantage above 0, and it is the same for each of them (`best_of_group`);
- `train.algorithm: supervised` has one row a task, and no rollouts (`taught.py`).

`train.batching: verl` leaves all of it to verl. `sampler`, the one class of harness that verl's
task runner loads, installs this module. docs/training.md compares it with verl and agentlightning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.protocol import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

from harness_verl.advantages import best_of_group, grouped_advantages
from harness_verl.dealing import Row, deal, deal_to_ranks
from harness_verl.names import ABOUT
from harness_verl.rows import UNTRAINED
from harness_verl.taught import left_out, report_no_rollouts
from harness_verl.update_times import to_step

Judge = Callable[[Mapping[tuple[str, str], float]], Mapping[tuple[str, str], float]]
"""A function from the scores of sessions to their advantages, by (group, session)."""


class Batches:
    """Takes the place of three of the V1 trainer's methods; one instance a trainer.

    Args:
        shared: Whether all calls of a session are paid its reward (`train.credit`).
        merges: Whether rows may hold several calls.
        threshold: Lowest score at which the best of a group are trained, and no others; None: GRPO.
        taught: Whether rows are gold answers, not calls of rollouts.
    """

    def __init__(
        self,
        *,
        shared: bool = True,
        merges: bool = False,
        threshold: float | None = None,
        taught: bool = False,
    ) -> None:
        self._shared, self._merges, self._threshold = shared, merges, threshold
        self._taught = taught
        self._part: dict[str, int] = {}
        """This step's mini-batch of every row, by key."""
        self._chosen: dict[str, float] = {}
        """Measures of this step's chosen rollouts."""
        self._about: dict[str, Mapping[str, Any]] = {}
        """Records of this step's rows about their calls and session, by key, where they exist."""
        self._untrained: dict[tuple[str, str], float] = {}
        """Scores of this step's sessions without a trained row."""
        self._size = 0
        """Rows of a mini-batch, padding included."""
        self._parts = 0
        self._rows = 0

    def balance(
        self, trainer: Any, batch: KVBatchMeta, metrics: dict[str, Any], **_: Any
    ) -> KVBatchMeta:
        """Sort, divide and pad the rows, in place of verl's `_balance_batch`."""
        rows = self._take_out_untrained(batch)
        parts = deal(
            rows, trainer.config.data.seed, trainer.global_steps, _optimizer_steps(trainer.config)
        )
        ranks, multiple = _ranks(trainer), _multiple(trainer.config)
        shares = [deal_to_ranks(part, ranks) for part in parts]
        most = max(map(len, chain.from_iterable(shares)), default=1)
        # Every device takes as many rows of each mini-batch; verl cuts them so.
        slots = math.ceil(most / multiple) * multiple
        self._size = slots * ranks
        self._parts, self._rows = len(parts), len(rows)
        keys = []
        self._part = {}
        for number, part in enumerate(parts):
            for row in part:
                keys.append(row.key)
                self._part[row.key] = number
        tags = dict(zip(batch.keys, batch.tags, strict=True))
        if not keys:
            # Nothing to train: one masked row goes through verl's step, and no update is made.
            keys = [min(batch.keys, key=_session)]
        if untrained := sorted(tags.keys() - set(keys)):
            tq.kv_clear(partition_id=batch.partition_id, keys=untrained)
        # verl cuts a batch into equal parts for its devices, so it is filled up with masked rows.
        filled = upsample_batch_to_divisible_size(
            KVBatchMeta(
                partition_id=batch.partition_id,
                keys=keys,
                tags=[tags[key] for key in keys],
                extra_info=batch.extra_info,
            ),
            max(len(parts), 1) * self._size,
            trainer.tokenizer.eos_token_id,
        )
        filled.reorder(_order(shares, keys, len(filled), ranks, slots))
        metrics["training/rows"] = float(len(rows))
        metrics["training/padding_rows"] = float(len(filled) - len(rows))
        if self._taught:
            # If a step has several batches, verl sums metrics that are named a total.
            metrics["training/taught_calls_total"] = float(len(rows))
            metrics["training/left_out_total"] = float(left_out(self._untrained))
        else:
            metrics["training/untrained_sessions"] = float(len(self._untrained))
        metrics["training/optimizer_steps"] = float(self._parts)
        if self._merges:
            calls = tokens = unmerged = saved = 0
            for row in rows:
                calls += row.calls
                tokens += row.tokens
            for about in self._about.values():
                unmerged += about["again"]
                saved += about["saved"]
            metrics.update(
                {
                    "training/calls": float(calls),
                    "training/merged_calls": float(calls - len(rows)),
                    "training/unmerged_calls": float(unmerged),
                    "training/tokens": float(tokens),
                    "training/saved_tokens": float(saved),
                }
            )
        return filled

    def _take_out_untrained(self, batch: KVBatchMeta) -> list[Row]:
        """Return the rows to train, and store the scores of sessions without one."""
        positions = _positions(batch)
        few = []
        for key, tag in zip(batch.keys, batch.tags, strict=True):
            # One masked token represents a session without a call of a trained role.
            if tag["prompt_len"] == tag["response_len"] == len(UNTRAINED.prompt_ids):
                few.append(key)
        self._untrained = {}
        if few:
            data = tq.kv_batch_get(
                keys=few, partition_id=batch.partition_id, select_fields=["rm_scores"]
            )
            for key, score in zip(few, data["rm_scores"], strict=True):
                uid, session, _ = _session(key)
                self._untrained[uid, str(session)] = float(score.sum())
        if self._merges or not self._shared:
            data = tq.kv_batch_get(
                keys=batch.keys, partition_id=batch.partition_id, select_fields=["extra_fields"]
            )
            self._about = {}
            for key, fields in zip(batch.keys, data["extra_fields"], strict=True):
                self._about[key] = fields[ABOUT]
        untrained = set(few)
        rows = []
        for key, tag in zip(batch.keys, batch.tags, strict=True):
            if key in untrained:
                continue
            uid, session, call = _session(key)
            calls = len(self._about[key]["calls"]) if self._merges else 1
            rows.append(Row(key, positions[uid], session, call, int(tag["seq_len"]), calls))
        return rows

    def advantages(
        self, data: DataProto, batch_keys: list[str], adv_estimator: object, **options: Any
    ) -> DataProto:
        """Compute advantages over all scored sessions, in place of verl's function."""
        if adv_estimator != core_algos.AdvantageEstimator.GRPO:
            return compute_advantage_for_multi_trajectories(
                data, batch_keys, adv_estimator, **options
            )
        judge: Judge = partial(
            grouped_advantages, by_std=options.get("norm_adv_by_std_in_grpo", True)
        )
        if self._threshold is not None:
            judge = partial(best_of_group, least=self._threshold)
        mask = data.batch["response_mask"]
        if self._shared:
            by_row = self._by_session(data, batch_keys, judge)
            advantages = torch.tensor([[value] for value in by_row])
        else:
            advantages = self._by_kind(batch_keys, judge, mask.shape[1])
        advantages = advantages * mask
        if self._threshold is not None:
            advantages = self._weighed(advantages, mask, batch_keys)
        data.batch["advantages"] = data.batch["returns"] = advantages
        return data

    def _weighed(
        self, chosen: torch.Tensor, mask: torch.Tensor, keys: Sequence[str]
    ) -> torch.Tensor:
        """Scale the chosen tokens' advantages of 1 so that the mean loss is over them alone.

        verl divides a mini-batch's loss by all its tokens; the scale undoes that.
        """
        name = "training/taught_tokens_total" if self._taught else "training/chosen_tokens"
        self._chosen = {name: float(chosen.sum())}
        parts = torch.tensor([self._part.get(key, -1) for key in keys])
        for number in range(self._parts):
            in_part = parts == number
            # A mini-batch without a chosen token keeps its advantages of 0.
            if (tokens := chosen[in_part].sum()) > 0:
                chosen[in_part] *= mask[in_part].sum() / tokens
        return chosen

    def _by_session(self, data: DataProto, keys: Sequence[str], judge: Judge) -> list[float]:
        """Return the advantage of every row's session."""
        sessions = [_session(key) for key in keys]
        totals = data.batch["token_level_rewards"].sum(-1).tolist()
        scores = dict(self._untrained)
        last: dict[tuple[str, str], int] = {}
        # As in verl, the score of a session's last row counts; rows come in any order.
        for (uid, session, call), total in zip(sessions, totals, strict=True):
            name = (uid, str(session))
            if call >= last.get(name, 0):
                last[name], scores[name] = call, total
        advantages = judge(scores)
        return [advantages[uid, str(session)] for uid, session, _ in sessions]

    def _by_kind(self, keys: Sequence[str], judge: Judge, longest: int) -> torch.Tensor:
        """Return the advantage of each token's call, `[rows, longest]`, with 0 for padding.

        Calls are compared with the task's calls of the same kind.
        """
        values: dict[tuple[str, str], float] = {}
        for key, about in self._about.items():
            uid, session, _ = _session(key)
            for kind, value in about["values"].items():
                values[f"{uid} {kind}", str(session)] = value
        by_kind = judge(values) if values else {}
        advantages = torch.zeros(len(keys), longest)
        for row, key in enumerate(keys):
            uid, session, _ = _session(key)
            end = 0
            # Rows that only fill up a batch have no calls, so they stay 0.
            for kind, size in self._about[key]["calls"] if key in self._about else ():
                advantage = by_kind.get((f"{uid} {kind}", str(session)), 0.0)
                advantages[row, end : end + size] = advantage
                end += size
        return advantages

    def update(
        self, trainer: Any, original: Any, batch: KVBatchMeta, metrics: dict[str, Any]
    ) -> KVBatchMeta:
        """Run verl's `_update_actor` with this step's mini-batch size, if any row is trained."""
        metrics.update(self._chosen)
        if not self._parts:
            return batch
        group = trainer.actor_rollout_wg
        send = group.update_actor

        def resized(filled: KVBatchMeta) -> Any:
            # Losses per sequence must divide by the number of real sequences.
            real = self._rows / self._parts
            filled.extra_info.update(mini_batch_size=self._size, global_batch_size=real)
            return send(filled)

        group.update_actor = resized
        try:
            done: KVBatchMeta = original(trainer, batch, metrics)
        finally:
            group.update_actor = send
        for name, usual in _OF_THE_UPDATE.items():
            if name in metrics:
                metrics[usual] = metrics.pop(name)
        epochs = int(trainer.config.actor_rollout_ref.actor.ppo_epochs)
        to_step(metrics, self._parts * epochs)
        if self._taught:
            metrics["training/cross_entropy"] = metrics.pop("actor/pg_loss")
        return done


_OF_THE_UPDATE = {
    "actor/entropy_loss": "actor/entropy",
    "actor/rollout_probs_diff_max": "training/rollout_probs_diff_max",
    "actor/rollout_probs_diff_mean": "training/rollout_probs_diff_mean",
}
"""Names of the update's metrics where no pass precedes it (`packing.py`), with verl's names."""


def install(*, shared: bool, merges: bool, threshold: float | None, taught: bool = False) -> None:
    """Put `Batches` in place in this process."""
    batches = Batches(shared=shared, merges=merges, threshold=threshold, taught=taught)
    trainer = trainer_base.PPOTrainer
    original = trainer._update_actor
    trainer._balance_batch = lambda self, batch, metrics, **options: batches.balance(
        self, batch, metrics, **options
    )
    trainer._update_actor = lambda self, batch, metrics: batches.update(
        self, original, batch, metrics
    )
    trainer_base.compute_advantage_for_multi_trajectories = batches.advantages
    if taught:
        report_no_rollouts(trainer)


def _session(key: str) -> tuple[str, int, int]:
    """Return a key's task id in the queue, session and call."""
    uid, session, call = key.rsplit("_", 2)
    return uid, int(session), int(call)


def _order(
    shares: Sequence[Sequence[Sequence[Row]]],
    keys: Sequence[str],
    filled: int,
    ranks: int,
    slots: int,
) -> list[int]:
    """Return the indices of a batch's rows, device after device, each mini-batch after mini-batch.

    Args:
        shares: Each mini-batch's rows by device.
        keys: Keys of the batch's rows before padding.
        filled: Rows of the batch with padding, which follows the other rows.
        slots: Rows of a mini-batch on one device, with padding.
    """
    padding = iter(range(len(keys), filled))
    index_of = {key: index for index, key in enumerate(keys)}
    order: list[list[int]] = [[] for _ in range(ranks)]
    if not shares:
        # The one masked row goes to the first device, and the others get nothing but padding.
        order[0].append(0)
        shares = [[()] * ranks]
    for number, part in enumerate(shares, start=1):
        for rank, share in enumerate(part):
            order[rank] += [index_of[row.key] for row in share]
            # verl cuts every device's rows at the same places, so each part is filled up itself.
            missing = number * slots - len(order[rank])
            for _ in range(missing):
                order[rank].append(next(padding))
    return list(chain.from_iterable(order))


def _positions(batch: KVBatchMeta) -> dict[str, int]:
    """Return the position in the run's order of each task in the batch."""
    # All rows of a task have its position, so one of each is read.
    key_of: dict[str, str] = {}
    for key in batch.keys:
        uid, _, _ = _session(key)
        key_of[uid] = key
    data = tq.kv_batch_get(
        keys=list(key_of.values()), partition_id=batch.partition_id, select_fields=["index"]
    )
    positions = {}
    for uid, index in zip(key_of, data["index"], strict=True):
        positions[uid] = int(index)
    return positions


def _optimizer_steps(config: Any) -> int:
    sync = config.trainer.v1.get(config.trainer.v1.trainer_mode, {}).get("parameter_sync_step", 1)
    tasks = int(config.data.train_batch_size) // int(sync)
    return math.ceil(tasks / int(config.actor_rollout_ref.actor.ppo_mini_batch_size))


def _multiple(config: Any) -> int:
    """Return the number that divides each device's rows: every forward pass takes as many."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    sizes = [
        actor.ppo_micro_batch_size_per_gpu if not actor.use_dynamic_bsz else 1,
        rollout.log_prob_micro_batch_size_per_gpu if not rollout.log_prob_use_dynamic_bsz else 1,
    ]
    return math.lcm(*(size or 1 for size in sizes))


def _ranks(trainer: Any) -> int:
    group = trainer.actor_rollout_wg
    if "actor" not in group._dispatch_info:
        group._dispatch_info["actor"] = group._query_dispatch_info("actor")
    return int(max(group._dispatch_info["actor"])) + 1
