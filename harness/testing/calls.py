"""Recorded calls for tests that need few of their fields."""

from __future__ import annotations

from typing import Any

from harness.records import Transition


def transition(role: str, index: int = 0, **fields: Any) -> Transition:
    """Return a call of `role` without token ids; `fields` are further fields of `Transition`."""
    known: dict[str, Any] = {
        "rollout_id": "r",
        "attempt_id": "a",
        "index": index,
        "role": role,
        "response_id": str(index),
        "model": "m",
        "messages": (),
        "response_text": "x",
        "finish_reason": "stop",
        "prompt_ids": None,
        "response_ids": None,
        "logprobs": None,
        "prompt_tokens": None,
        "response_tokens": None,
        "sampling": {},
        "overridden": {},
        "started_s": 0.0,
        "latency_s": 0.0,
        "gateway_s": 0.0,
    }
    return Transition(**(known | fields))
