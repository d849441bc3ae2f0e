"""The reward `reasoning_gym`: the data set's own grade."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process

from harness import Attempt, Task, Verdict

LIMIT_S = 20.0
"""For one grade. Some rules compute with the answer, which may be anything."""


class ReasoningGym:
    """0 to 1 by the rule of the puzzle's data set, for the text between the last `<answer>` and `</answer>`.

    The rules evaluate what a policy wrote, some as formulas, so they run in a process of their own, which is ended and
    made anew where one does not come to an end.
    """

    version = "reasoning_gym/1"

    def __init__(self) -> None:
        self._process: Process | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()

    async def score(self, task: Task, attempt: Attempt) -> Verdict:
        if attempt.outcome != "ok":
            return Verdict(None, f"the attempt ended with {attempt.outcome}")
        asked = json.dumps({**task.data, "answer": attempt.answer})
        async with self._lock:
            try:
                async with asyncio.timeout(LIMIT_S):
                    said = await self._ask(asked)
            except TimeoutError:
                await self._end()
                return Verdict(None, f"the grade was not there within {LIMIT_S:g} s")
        if not said:
            await self._end()
            return Verdict(None, "the grader ended with this answer")
        grade = json.loads(said)
        if "error" in grade:
            return Verdict(None, f"the grader failed: {grade['error']}")
        return Verdict(grade["score"], grade["reason"])

    async def _ask(self, asked: str) -> bytes:
        loop = asyncio.get_running_loop()
        if self._process is None or self._process.returncode is not None or self._loop is not loop:
            command = (sys.executable, "-m", "harness_reasoning_gym.grader")
            self._process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=1 << 20)
            self._loop = loop
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(asked.encode() + b"\n")
        await self._process.stdin.drain()
        return await self._process.stdout.readline()

    async def _end(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self._process = None
