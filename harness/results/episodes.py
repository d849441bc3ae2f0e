"""Episodes: one flat row a rollout, and one row a transition beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict

from harness.records import Attempt, Task, Transition, Verdict
from harness.results.model import Call, Episode


def episode_row(
    task: Task,
    attempt: Attempt,
    reward: Verdict,
    *,
    reward_version: str,
    agent: str,
    phase: str,
    step: int,
    session: int,
    trained: Callable[[Transition], bool],
    first_answer: str | None = None,
    first_reward: float | None = None,
    rewrites: int = 0,
    used_reward: float | None = None,
    meaning: str | None = None,
) -> Episode:
    """The flat row of one rollout."""
    chosen = [call for call in attempt.transitions if trained(call)]
    return {
        "step": step,
        "phase": phase,
        "session": session,
        "rollout_id": attempt.rollout_id,
        "attempt_id": attempt.attempt_id,
        "task_id": task.id,
        "cluster": task.cluster,
        "difficulty": task.difficulty,
        "question": task.question,
        "agent": agent,
        "outcome": attempt.outcome,
        "detail": attempt.detail,
        "answer": attempt.answer,
        "reward": reward.value,
        "used_reward": used_reward,
        "reward_reason": reward.reason,
        "reward_flags": list(reward.flags),
        "reward_version": reward_version,
        "reward_parts": json.dumps(dict(reward.parts)) if reward.parts else None,
        "reward_by_role": json.dumps(dict(reward.by_role)) if reward.by_role else None,
        "meaning": meaning,
        "first_answer": first_answer,
        "first_reward": first_reward,
        "calls": len(attempt.transitions) + len(attempt.failures),
        "failed_calls": len(attempt.failures),
        "unread_calls": sum(call.unread_call for call in attempt.transitions),
        "rewrites": rewrites,
        "transitions": len(attempt.transitions),
        "trained_transitions": len(chosen),
        "trained_tokens": sum(len(call.response_ids or ()) for call in chosen),
        "prompt_tokens": sum(call.prompt_tokens or 0 for call in attempt.transitions),
        "response_tokens": sum(call.response_tokens or 0 for call in attempt.transitions),
        "overridden_calls": sum(bool(call.overridden) for call in attempt.transitions),
        "call_roles": [call.role for call in attempt.transitions],
        "tool_calls": json.dumps([asdict(call) for call in attempt.tool_calls], ensure_ascii=False),
        "started_s": attempt.started_s,
        "elapsed_s": attempt.elapsed_s,
    }


def transition_rows(attempt: Attempt, *, phase: str, step: int, paid: Mapping[int, float]) -> Iterable[Call]:
    """The rows of an attempt's calls.

    Args:
        paid: What training was given of each trained call, by its index.
    """
    for call in attempt.transitions:
        yield {
            "step": step,
            "phase": phase,
            "rollout_id": call.rollout_id,
            "attempt_id": call.attempt_id,
            "index": call.index,
            "role": call.role,
            "trained": call.index in paid,
            "paid": paid.get(call.index),
            "response_id": call.response_id,
            "messages": json.dumps(list(call.messages), ensure_ascii=False),
            "response_text": call.response_text,
            "finish_reason": call.finish_reason,
            "prompt_ids": call.prompt_ids,
            "response_ids": call.response_ids,
            "logprobs": call.logprobs,
            "started_s": call.started_s,
            "latency_s": call.latency_s,
            "gateway_s": call.gateway_s,
        }
