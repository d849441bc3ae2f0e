"""Run folders written through the project's own writers, with rollouts of known accuracy."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

from harness.config import load_config
from harness.plugins import load, task_set_spec
from harness.records import Attempt, Outcome, Task, ToolCall, Transition, Verdict
from harness.runs.episodes import episode_row, transition_rows
from harness.runs.folder import RowLog, RunFolder
from harness.runs.schema import Certificate, Fingerprint, Scores, Shadow
from harness.runs.tables import conclude
from harness.training.record import closed, run_record, training_result
from harness.training.task_order import training_order, validation_order
from harness.util.parsing import digest


def certificate(scenarios: str = "s", prompts: str = "p") -> Certificate:
    """That some agent passed, with these hashes in its fingerprint."""
    fingerprint: Fingerprint = {
        "agent": "any",
        "strict": True,
        "prompts": prompts,
        "scenarios": scenarios,
        "reference": "r",
        "frameworks": {},
    }
    return {
        "schema": 1,
        "agent": "any",
        "strict": True,
        "hash": digest(fingerprint),
        "fingerprint": fingerprint,
        "scenarios": 12,
        "accepted": [],
        "deviation": None,
        "made": "2026-11-20T00:00:00Z",
    }


CERTIFICATE = certificate()
SHADOW: Shadow = {
    "checked": 100,
    "identical": 100,
    "unchecked": 0,
    "reason": "",
    "first_difference": None,
    "seconds": 0.2,
}


@cache
def pocket() -> Any:
    return load(task_set_spec("pocket"))()


def write_run(
    root: Path,
    agent: str = "reference_sql",
    seed: int = 0,
    *,
    accuracy: tuple[float, float] = (0.3, 0.6),
    steps: int = 4,
    status: str = "finished",
    overrides: Sequence[str] = (),
    calls: int = 3,
    agent_match: str = "write",
    unscored: int = 0,
    failing: int = 0,
    step_s: float = 2.0,
    val_limit: int = 60,
    parity: Certificate | None = CERTIFICATE,
    shadow: Shadow | None = SHADOW,
    kind: Literal["train", "eval"] = "train",
    model: str = "synthetic-policy",
    keep_transitions: bool = True,
    parts: bool = False,
) -> RunFolder:
    """A run whose validation accuracy climbs from `accuracy[0]` to `accuracy[1]` over its steps."""
    config = load_config(
        "cpu",
        None,
        [
            f"train.steps={steps}",
            "train.batch_size=4",
            "rollout.group_size=2",
            f"task.val_limit={val_limit}",
            "train.val_every=2",
            *overrides,
        ],
        agent=agent,
        agent_match=agent_match,
        seed=seed,
    )
    folder = RunFolder.create(root, agent)
    folder.write_config(config)
    train = training_order(pocket().load("train"), config) if kind == "train" else []
    val = validation_order(pocket().load("val"), config)
    record = run_record(config, folder, pocket(), train, val, model, "cpu", kind=kind)
    record["parity"] = parity
    if shadow is None:
        record.pop("shadow", None)
    elif "shadow" in record:
        record["shadow"] = shadow
    del record["agent_fingerprint"]
    folder.write(record)
    writer = Writer(folder, config, keep_transitions, parts)
    seen = steps if status == "finished" else steps // 2

    def last(index: int) -> Outcome:
        if index < unscored:
            return "endpoint_error"
        return "timeout" if index < unscored + failing else "ok"

    for step in range(seen + 1):
        share = accuracy[0] + (accuracy[1] - accuracy[0]) * (step / steps if kind == "train" else 1)
        if step and kind == "train":
            batch = train[(step - 1) * 4 : step * 4]
            for task in batch:
                for session in range(2):
                    writer.episode(task, "train", step, session, share, calls)
            writer.step(step, step_s)
        if kind == "train" and (step % 2 == 0 or step == steps):
            for index, task in enumerate(val):
                writer.episode(
                    task,
                    "val",
                    step,
                    0,
                    share,
                    calls,
                    outcome=last(index) if step == seen else "ok",
                )
        if kind == "eval":
            for index, (task, session) in enumerate(product(val, range(config.eval.samples))):
                lost: Outcome = "endpoint_error" if index < unscored else "ok"
                writer.episode(task, "val", 0, session, accuracy[1], calls, outcome=lost)
            break
    reason = "" if status == "finished" else "the policy's server went away"
    record = folder.read()
    scores: Scores = training_result(folder, record) if kind == "train" else {}
    conclude(
        folder,
        closed(record, status, reason, 12.0 if kind == "eval" else 30 + seen * step_s, scores),
    )
    _idle(folder)
    return folder


def _idle(folder: RunFolder) -> None:
    """Let a run be of an idle machine: comparisons remark on the load of others."""
    record = folder.read()
    for launch in record["launches"]:
        launch["load"] = 0.0
    folder.write(record)


class Writer:
    def __init__(self, folder: RunFolder, config: Any, keep_transitions: bool, parts: bool) -> None:
        self._episodes, self._steps = RowLog(folder, "episodes"), RowLog(folder, "steps")
        self._transitions = RowLog(folder, "transitions") if keep_transitions else None
        self._config, self._count, self._parts = config, 0, parts

    def step(self, step: int, step_s: float) -> None:
        data = {
            "step_s": step_s,
            "rollout_s": step_s * 0.5,
            "update_s": step_s * 0.35,
            "weights_s": step_s * 0.05,
            "entropy": 1.0 / step,
        }
        self._steps.add([{"step": step, "data": data}])

    def episode(
        self,
        task: Task,
        phase: str,
        step: int,
        session: int,
        share: float,
        calls: int,
        *,
        outcome: Outcome = "ok",
    ) -> None:
        import re

        self._count += 1
        failed = outcome != "ok"
        name = f"{phase}-{step}-{task.id}-{session}-{self._config.agent}-{self._config.seed}-{self._config.agent_match}"
        draw = random.Random(zlib.crc32(name.encode()))
        rewarded = draw.random() < share
        first = (rewarded and draw.random() < 0.8) or (not rewarded and draw.random() < 0.05)
        roles = ("write_query", "check_query", "rewrite_query")[:calls]
        transitions = tuple(
            Transition(
                rollout_id=f"ro-{self._count}",
                attempt_id=f"at-{self._count}",
                index=index,
                role=role,
                response_id=f"re-{self._count}-{index}",
                model="policy",
                messages=(
                    {"role": "system", "content": f"You {role.replace('_', ' ')}."},
                    {"role": "user", "content": f"Schema: t(a)\n\nQuestion: {task.question}"},
                ),
                response_text="```sql\nSELECT 1\n```"
                if role != "check_query"
                else "THE QUERY IS INCORRECT.",
                finish_reason="stop",
                prompt_ids=(1, 2, 3),
                response_ids=tuple(range(10 + index)),
                logprobs=tuple(-0.5 for _ in range(10 + index)),
                prompt_tokens=80 + 20 * index,
                response_tokens=10 + index,
                sampling={},
                overridden={},
                started_s=1.0e9 + self._count + 0.056 * index,
                latency_s=0.05,
                gateway_s=0.0005,
            )
            for index, role in enumerate(roles)
        )
        attempt = Attempt(
            rollout_id=f"ro-{self._count}",
            attempt_id=f"at-{self._count}",
            outcome=outcome,
            detail="it did not end" if failed else "",
            answer=None if failed else (task.gold if rewarded else "SELECT 1"),
            transitions=transitions,
            failures=(),
            tool_calls=(
                ToolCall(
                    "query_database",
                    {"sql": "SELECT 1"},
                    "1 row: <1>",
                    True,
                    1.0e9 + self._count + 0.052,
                    0.001,
                ),
            ),
            started_s=1.0e9 + self._count,
            elapsed_s=0.05 * len(roles) + 0.001 + 0.006 * len(roles),
        )
        reward = Verdict(None if failed else float(rewarded), outcome if failed else "rows differ")
        if self._parts and not failed:
            reward = replace(
                reward,
                parts={"right": float(rewarded), "style": 0.25},
                by_role={"write_query": 0.5},
            )

        trained = [
            call
            for call in transitions
            if phase == "train" and re.search(self._config.agent_match, call.role)
        ]
        paid = {call.index: reward.value or 0.0 for call in trained}
        self._episodes.add(
            [
                episode_row(
                    task,
                    attempt,
                    reward,
                    reward_version="execution_accuracy/2",
                    agent=self._config.agent,
                    phase=phase,
                    step=step,
                    session=session,
                    paid=paid,
                    first_reward=None if failed else float(first),
                    used_reward=reward.value,
                    meaning=attempt.answer,
                )
            ]
        )
        if self._transitions is not None:
            self._transitions.add(transition_rows(attempt, phase=phase, step=step, paid=paid))
