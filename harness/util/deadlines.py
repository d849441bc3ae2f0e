"""Run untrusted coroutines, such as an agent's, under a hard deadline and contain exceptions."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import reduce
from typing import Any

from harness.errors import RolloutError

CLOSE_GRACE_S = 5.0
"""Seconds that cancelled work may take to clean up before it is abandoned."""


class DeadlinePassed(RolloutError):
    """The work did not end in time."""


class Raised(RolloutError):
    """Any exception of the work: kind and message, and those of its root cause."""

    def __init__(self, error: BaseException) -> None:
        logging.getLogger(__name__).info("%s", type(error).__name__, exc_info=error)
        # A chain may contain a cycle.
        root = reduce(lambda one, _: one.__cause__ or one, range(20), error)
        text = ", from ".join(dict.fromkeys([_description(error)[:350], _description(root)[:350]]))
        super().__init__(text.encode("utf-8", "backslashreplace").decode())


def _description(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException as worse:  # an untrusted __str__ may raise anything
        return f"{type(error).__name__}: (its message is not available: {type(worse).__name__})"


async def within(
    timeout_s: float, work: Callable[[], Awaitable[Any]], sooner: asyncio.Future[None] | None = None
) -> Any:
    """Run `work` under a hard deadline, even if it ignores its cancellation or blocks the loop.

    Args:
        sooner: Ends the work like the deadline as soon as it is done.

    Raises:
        DeadlinePassed: The work did not end in time.
        Raised: The work raised, including SystemExit, KeyboardInterrupt or its own CancelledError.
        asyncio.CancelledError: This call was cancelled from outside, and the work with it.
    """
    ends = time.monotonic() + timeout_s

    async def timed() -> Any:
        result = await _contained(work)
        if time.monotonic() > ends:
            raise DeadlinePassed
        return result

    task = asyncio.create_task(timed())
    try:
        ends_it = {task} if sooner is None else {task, sooner}
        await asyncio.wait(ends_it, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if task.done():
        # This call did not cancel it: the work cancelled itself, or passed on a cancellation.
        if task.cancelled():
            raise Raised(asyncio.CancelledError("of its own making"))
        return task.result()
    task.cancel()
    await asyncio.wait({task}, timeout=CLOSE_GRACE_S)
    if not task.done():
        task.add_done_callback(lambda late: late.cancelled() or late.exception())
        asyncio.tasks._unregister_task(task)  # the end of the loop would wait for it forever
    raise DeadlinePassed


async def _contained(work: Callable[[], Awaitable[Any]]) -> Any:
    """Run `work`; convert its exceptions to `Raised`, since SystemExit would end the loop."""
    try:
        return await work()
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        raise Raised(error) from error
