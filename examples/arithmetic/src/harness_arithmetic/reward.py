"""The reward `arithmetic`: how near the last number of the answer is, and whether it was calculated."""

from __future__ import annotations

import re

from harness import Attempt, Task, Verdict

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
CALCULATED = 0.1
"""Reward of a successful calculation with a wrong answer."""


class Arithmetic:
    """1 for the number; else half at most, less the further away, or a little for having calculated."""

    version = "arithmetic/1"

    async def score(self, task: Task, attempt: Attempt) -> Verdict:
        found = NUMBER.findall(attempt.answer or "")
        wanted = float(task.gold)
        near = 1 / (1 + abs(float(found[-1]) - wanted)) if found else 0.0
        calculated = float(any(call.ok for call in attempt.tool_calls))
        parts = {"near": near, "calculated": calculated}
        if near == 1:
            return Verdict(1.0, "the number", parts)
        reason = f"{found[-1]} is not {task.gold}" if found else "no number"
        return Verdict(max(near / 2, CALCULATED * calculated), reason, parts)
