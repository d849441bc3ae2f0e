"""The shadow check: recorded rollouts of a strict agent, replayed with the reference agent.

The reference gets the same problem and, for each request and tool call, the recorded reply or
result. Its requests must be byte-identical to the recorded ones in canonical form, in order, and so
must its tool calls and its answer. No model and no tool is called.

As a process: `python -m harness.parity.shadow_check QUEUE AGENT`. It reads the rollouts that a run
writes to its queue, writes its result to the queue, and ends when the run requests it or is gone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from harness import plugins
from harness.contracts.toolbox import Agent
from harness.parity.comparison import Mismatch
from harness.parity.replay import check
from harness.records import Attempt, attempt_from
from harness.rollout.request import RolloutRequest
from harness.rollout.shadow_queue import DROPPED, WAITING
from harness.runs.folder import replace_text
from harness.runs.schema import Shadow, ShadowDifference

WAIT_S, CUT_SHORT_S = 60.0, 5.0
"""Seconds that the end of a run waits for remaining checks, and that an interrupted run waits."""
IDLE_S = 0.2
RESULT, END = "result", "end"
"""Names of files in the queue: the current result, and the mark that no further rollout follows."""


def parse(row: Mapping[str, Any]) -> tuple[RolloutRequest, Attempt, str]:
    """Return request, attempt and model's name of a rollout in the queue."""
    return RolloutRequest.parse(row["request"]), attempt_from(row["attempt"]), row["model"]


def nothing_checked() -> Shadow:
    """Return the result before the first rollout."""
    return {
        "checked": 0,
        "identical": 0,
        "unchecked": 0,
        "reason": "",
        "first_difference": None,
        "seconds": 0.0,
    }


class Checker:
    """Check the rollouts of one queue and write the result there.

    Args:
        reference: Reference agents keep no state between rollouts: one serves all.
    """

    def __init__(self, queue: Path, reference: Agent) -> None:
        self._queue = queue
        self._reference = reference
        self.result = read_result(queue) or nothing_checked()

    async def run(self, ended: Callable[[], bool]) -> None:
        """Check until the run has ended and nothing waits."""
        while True:
            last = ended()
            waiting = sorted(self._queue.glob(f"*{WAITING}"), key=lambda file: file.name)
            for file in waiting:
                await self._one(file)
            for file in self._queue.glob(f"*{DROPPED}"):
                self._not_checked("too many rollouts waited, or one was too large")
                file.unlink(missing_ok=True)
            self._write()
            if last:
                return
            if not waiting:
                await asyncio.sleep(IDLE_S)

    async def _one(self, file: Path) -> None:
        began = time.perf_counter()
        try:
            row = orjson.loads(file.read_bytes())
            request, attempt, model = parse(row)
            difference = await check(self._reference, request, attempt, model)
        except Exception as error:
            self._not_checked(f"{type(error).__name__}: {error}"[:300])
        else:
            self.result["checked"] += 1
            self.result["seconds"] += time.perf_counter() - began
            if difference is None:
                self.result["identical"] += 1
            elif self.result["first_difference"] is None:
                self.result["first_difference"] = _difference(row, difference)
                self._write()
        file.unlink(missing_ok=True)

    def _not_checked(self, reason: str) -> None:
        self.result["unchecked"] += 1
        self.result["reason"] = self.result["reason"] or reason

    def _write(self) -> None:
        replace_text(self._queue / RESULT, json.dumps(self.result))


def _difference(row: Mapping[str, Any], found: Mismatch) -> ShadowDifference:
    return {
        "rollout_id": found.scenario,
        "task_id": row["request"]["problem"]["task_id"],
        "phase": row["phase"],
        "step": row["step"],
        "place": found.place,
        "expected": found.expected,
        "got": found.got,
    }


def read_result(queue: Path) -> Shadow | None:
    """Return the current result of a check, or None if it has written nothing."""
    try:
        found: Shadow = json.loads((queue / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


class ShadowCheck:
    """The check of one run, in a process of its own. Its failures do not affect the run.

    Args:
        queue: Created by `start`, removed by `stop`.
        agent: The strict agent of the run.
        known: Result of the run's earlier launches.
    """

    def __init__(self, queue: Path, agent: str, known: Shadow | None) -> None:
        self._queue = queue
        self._agent = agent
        self._known = known
        self._process: subprocess.Popen[bytes] | None = None
        self._problem = ""

    @property
    def pid(self) -> int | None:
        """Process id of the check; None before `start`."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process. A failure to start is part of the result."""
        command = [
            sys.executable,
            "-m",
            "harness.parity.shadow_check",
            str(self._queue),
            self._agent,
            str(os.getpid()),
        ]
        try:
            self._queue.mkdir(parents=True, exist_ok=True)
            (self._queue / END).unlink(missing_ok=True)
            if self._known is not None and read_result(self._queue) is None:
                replace_text(self._queue / RESULT, json.dumps(self._known))
            with (self._queue / "log").open("ab") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            self._problem = f"the check did not start: {error}"

    def stop(self, wait_s: float = WAIT_S) -> Shadow:
        """Wait for the check's end for at most `wait_s` seconds, and return its result."""
        process = self._process
        if process is not None:
            with suppress(OSError):
                (self._queue / END).touch()
            try:
                status = process.wait(wait_s)
                self._problem = f"the check ended with status {status}" if status else ""
            except subprocess.TimeoutExpired:
                # A run does not wait for its check; what remains counts as unchecked.
                self._problem = f"the check was not done {wait_s:g} s after the run's end"
                process.kill()
                process.wait()
        result = read_result(self._queue) or nothing_checked()
        for pattern in (WAITING, DROPPED):
            result["unchecked"] += len(list(self._queue.glob(f"*{pattern}")))
        if self._problem:
            result["reason"] = result["reason"] or self._problem
        self._remove()
        return result

    def _remove(self) -> None:
        with suppress(OSError):
            for file in self._queue.iterdir():
                file.unlink(missing_ok=True)
            self._queue.rmdir()


def main(arguments: Sequence[str] | None = None) -> None:
    """Check the rollouts of one run until it ends."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.parity.shadow_check", description=__doc__
    )
    parser.add_argument("queue", type=Path)
    parser.add_argument("agent")
    parser.add_argument("run", type=int, help="process id of the run")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING)
    # Rollouts need the processor more than their check does.
    with suppress(OSError):
        os.nice(10)
    program = plugins.program(plugins.program_of(options.agent))
    reference = plugins.load(plugins.agent_spec(program.reference))()
    checker = Checker(options.queue, reference)
    run: int = options.run

    def ended() -> bool:
        # A run that was killed leaves no mark, but its children get another parent, perhaps before
        # this process has read anything.
        return (options.queue / END).exists() or os.getppid() != run

    asyncio.run(checker.run(ended))


if __name__ == "__main__":
    main()
