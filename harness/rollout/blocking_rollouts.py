"""Find the rollout that blocks or ends its worker, and record it as the agent's failure.

One event loop has many rollouts of an agent in progress. One that blocks the loop (`time.sleep`, an
endless loop) past its deadline, or that ends the process (`os._exit`, a signal to itself), would
end the others as well, and an outside observer could not tell them apart. Inside the process it is
known: a task inherits the rollout that created it, in any framework, and so does a thread that
inherits the context.

A rollout that blocks the loop but meets its deadline delays the others. After `BLOCKED_S` the
worker's log shows the stack, typically a lock or a synchronous client.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from harness.contracts.queue import Queue
from harness.gateway.client import GatewayControl
from harness.records import Attempt, Outcome
from harness.rollout.host import UNDER_WAY, UnderWay
from harness.util import clock
from harness.util.branches import in_order

LOOK_S = 0.5
LATE_S = 1.0
"""Seconds after its deadline for which a rollout may block the loop."""
BLOCKED_S = 5.0
"""Seconds for which the loop may be blocked before the log shows its stack."""
REPORTS = 20
"""Most stacks in the log of one process."""
STACK = 12
"""Innermost calls of a stack that the log shows."""
SETTLE_S = 20.0
"""Seconds for recording the outcome of a rollout."""
STATUS = 70
"""Exit status of a worker after it has recorded the rollout that ended it."""

Settle = Callable[[UnderWay, Outcome, str], Coroutine[Any, Any, None]]


async def settle(
    queue: Queue, control: GatewayControl, one: UnderWay, outcome: Outcome, detail: str
) -> None:
    """Record the end of a rollout, with the calls that the gateway recorded."""
    transitions, failures = await control.close_attempt(one.rollout_id, one.attempt_id)
    attempt = Attempt(
        rollout_id=one.rollout_id,
        attempt_id=one.attempt_id,
        outcome=outcome,
        detail=detail,
        answer=None,
        transitions=tuple(transitions),
        failures=tuple(failures),
        tool_calls=tuple(in_order(sorted(one.tool_calls, key=lambda call: call.started_s))),
        started_s=one.started_s,
        elapsed_s=clock.now() - one.started_s,
    )
    await queue.settle(attempt)


class BlockingRollouts:
    """Watches one event loop, and intercepts calls that would end its process.

    Args:
        settle: Records the outcome of a rollout; run in an event loop of its own.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, settle: Settle) -> None:
        self._loop = loop
        self._settle = settle
        self._owners: weakref.WeakKeyDictionary[asyncio.Task[Any], UnderWay] = (
            weakref.WeakKeyDictionary()
        )
        self._turned = time.monotonic()
        self._thread = 0
        self._reports = 0
        self._reported = 0.0
        """The loop's last turn before the block that was last reported."""
        self._once = threading.Lock()
        self._really_exit: Callable[[int], Any] = os._exit
        self._all_tasks = asyncio.all_tasks

    def watch(self) -> None:
        """Begin, from within the loop."""
        self._loop.set_task_factory(self._make)
        asyncio.all_tasks = asyncio.tasks.all_tasks = self._own_tasks
        self._thread = threading.get_ident()
        self._turn()
        threading.Thread(target=self._look, name="blocking-rollouts", daemon=True).start()
        own_pid = os.getpid()

        def intercepted(
            real: Callable[..., object], name: str, ends_process: Callable[..., bool]
        ) -> Callable[..., Any]:
            def replacement(*arguments: Any) -> Any:
                # A fork inherits the replacements, but may end as it likes.
                if os.getpid() == own_pid and ends_process(*arguments):
                    # The rollout to which this thread belongs, or the only one in progress.
                    rollout = UNDER_WAY.get(None) or UnderWay.only()
                    if rollout is not None:
                        self._bring_down(
                            rollout,
                            "agent_error",
                            f"the agent ended its process: {name}{arguments}",
                        )
                return real(*arguments)

            return replacement

        def includes_this_process(target: int) -> bool:
            return target in (own_pid, 0, -1, os.getpgid(0))

        def sends_signal(target: int, number: int) -> bool:
            return number != 0 and includes_this_process(target)  # signal 0 only checks

        os._exit = intercepted(os._exit, "os._exit", lambda *_: True)
        os.abort = intercepted(os.abort, "os.abort", lambda: True)
        os.kill = intercepted(os.kill, "os.kill", sends_signal)
        os.killpg = intercepted(os.killpg, "os.killpg", sends_signal)
        signal.raise_signal = intercepted(
            signal.raise_signal, "signal.raise_signal", lambda _: True
        )

    def _make(
        self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=loop, **options)
        context: contextvars.Context | None = options.get("context")
        rollout = UNDER_WAY.get(None) if context is None else context.get(UNDER_WAY)
        # Remove the task from asyncio's registry, so that `all_tasks` of another rollout omits it.
        asyncio.tasks._unregister_task(task)
        if rollout is not None:
            self._owners[task] = rollout
        return task

    def _own_tasks(self, loop: asyncio.AbstractEventLoop | None = None) -> set[asyncio.Task[Any]]:
        """Replace `asyncio.all_tasks`.

        In the watched loop, return the tasks of the calling rollout; in its own loops, all tasks.
        """
        if (loop or asyncio.get_running_loop()) is not self._loop:
            return self._all_tasks(loop)
        mine = UNDER_WAY.get(None)
        return {
            task for task, owner in list(self._owners.items()) if owner is mine and not task.done()
        }

    def _turn(self) -> None:
        self._turned = time.monotonic()
        self._loop.call_later(LOOK_S, self._turn)

    def _look(self) -> None:
        while not self._loop.is_closed():
            time.sleep(LOOK_S)
            now, turned = time.monotonic(), self._turned
            task = asyncio.current_task(self._loop) if now - turned > LOOK_S + LATE_S else None
            rollout = self._owners.get(task) if task is not None else None
            if now - turned > BLOCKED_S:
                with suppress(Exception):  # a closed log must not end this thread
                    self._report(turned, now - turned, rollout)
            if rollout is not None and now > rollout.ends + LATE_S:
                detail = (
                    f"no answer within {rollout.timeout_s:g} s: "
                    "the agent kept its worker's event loop from turning"
                )
                self._bring_down(rollout, "timeout", detail)

    def _report(self, turned: float, blocked_s: float, rollout: UnderWay | None) -> None:
        """Log the stack of the loop's thread, once per block and at most `REPORTS` times.

        Args:
            turned: Time of the loop's last turn, by the monotonic clock.
            blocked_s: Seconds since then.
            rollout: The rollout of the running task; others may have used time before it.
        """
        frame = sys._current_frames().get(self._thread)
        if self._reported == turned or self._reports == REPORTS or frame is None:
            return
        stack = "".join(traceback.format_stack(frame)[-STACK:])
        if self._turned != turned:  # the loop has moved on, so the stack shows something else
            return
        self._reported, self._reports = turned, self._reports + 1
        where = "no rollout" if rollout is None else f"rollout {rollout.rollout_id}"
        sys.stderr.write(
            f"harness: the event loop has been blocked for {blocked_s:.1f} s; "
            f"the running task belongs to {where}. "
            f"All rollouts of this process wait. The innermost calls:\n{stack}"
        )
        sys.stderr.flush()

    def _bring_down(self, one: UnderWay, outcome: Outcome, detail: str) -> None:
        """Record a rollout's end, then end this process."""
        with self._once:  # a second caller waits until the process ends
            sys.stderr.write(f"harness: rollout {one.rollout_id}: {detail}\n")
            sys.stderr.flush()
            work = threading.Thread(
                target=lambda: asyncio.run(self._settle(one, outcome, detail)), daemon=True
            )
            work.start()
            work.join(SETTLE_S)
            self._really_exit(STATUS)
