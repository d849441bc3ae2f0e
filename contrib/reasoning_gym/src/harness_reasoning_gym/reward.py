"""The reward `reasoning_gym`: the data set's own grade."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import weakref

from harness import Attempt, Task, Verdict

LIMIT_S = 20.0
"""Seconds for one grade. Some rules compute with the answer, which is untrusted."""


class ReasoningGym:
    """0 to 1 by the rule of the puzzle's data set, for the text in the last `<answer>`.

    The rules evaluate a policy's text, some as formulas. They run in a separate process, which is
    replaced if a rule does not end.
    """

    version = "reasoning_gym/1"

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    async def score(self, task: Task, attempt: Attempt) -> Verdict:
        asked = json.dumps({**task.data, "answer": attempt.answer}).encode() + b"\n"
        line, late = await asyncio.to_thread(self._ask, asked)
        if late:
            return Verdict(None, f"there was no grade within {LIMIT_S:g} s")
        if not line:
            return Verdict(None, "the grader crashed on this answer")
        grade = json.loads(line)
        if "error" in grade:
            return Verdict(None, f"the grader failed: {grade['error']}")
        return Verdict(grade["score"], grade["reason"])

    def _ask(self, asked: bytes) -> tuple[bytes, bool]:
        """Return the grader's answer, and whether the grader was ended for being late."""
        with self._lock:
            process = self._grader()
            assert process.stdin is not None and process.stdout is not None
            late = threading.Event()

            def give_up() -> None:
                late.set()
                process.kill()

            timer = threading.Timer(LIMIT_S, give_up)
            timer.start()
            try:
                process.stdin.write(asked)
                process.stdin.flush()
                line = process.stdout.readline()
            except BrokenPipeError:
                line = b""
            finally:
                timer.cancel()
            if not line:
                _end(process)
            return line, late.is_set()

    def _grader(self) -> subprocess.Popen[bytes]:
        """Return the grading process, restarted if it has ended; it ends with this reward."""
        if self._process is None or self._process.poll() is not None:
            command = (sys.executable, "-m", "harness_reasoning_gym.grader")
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            weakref.finalize(self, _end, self._process)
        return self._process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
