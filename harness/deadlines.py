"""Foreign coroutines, an agent's or a reward's: ended at a deadline, and whatever they raise contained."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import reduce
from typing import Any

from harness.errors import RolloutError

CLOSE_GRACE_S = 5.0
"""How long cancelled work may take to clean up before it is left behind."""


class DeadlinePassed(RolloutError):
    """The work did not end in time."""


class Raised(RolloutError):
    """What the work raised, whatever its class: kind and message, and those of what first went wrong beneath it."""

    def __init__(self, error: BaseException) -> None:
        logging.getLogger(__name__).info("%s", type(error).__name__, exc_info=error)
        root = reduce(
            lambda one, _: one.__cause__ or one, range(20), error
        )  # a chain may be a ring
        told = ", from ".join(dict.fromkeys([_told(error)[:350], _told(root)[:350]]))
        super().__init__(told.encode("utf-8", "backslashreplace").decode())


def _told(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException as worse:  # its own __str__ may raise whatever the work may
        return f"{type(error).__name__}: (its message cannot be had: {type(worse).__name__})"


async def within(
    timeout_s: float, work: Callable[[], Awaitable[Any]], sooner: asyncio.Future[None] | None = None
) -> Any:
    """Do `work` until a deadline that really ends it, even if it ignores its cancellation or blocks the loop.

    Args:
        sooner: Ends the work as the deadline would, once it is done.

    Raises:
        DeadlinePassed: It did not end in time.
        Raised: It raised, be it SystemExit, KeyboardInterrupt or a CancelledError of its own making.
        asyncio.CancelledError: This was cancelled from outside, and the work with it.
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
        if (
            task.cancelled()
        ):  # not by us: the work cancelled itself, or let the cancellation of a part of it through
            raise Raised(asyncio.CancelledError("of its own making"))
        return task.result()
    task.cancel()
    await asyncio.wait({task}, timeout=CLOSE_GRACE_S)
    if not task.done():
        task.add_done_callback(lambda late: late.cancelled() or late.exception())
        asyncio.tasks._unregister_task(task)  # the loop's end would wait for it for ever
    raise DeadlinePassed


async def _contained(work: Callable[[], Awaitable[Any]]) -> Any:
    """Do `work`; what it raises becomes `Raised`, for a task lets SystemExit and KeyboardInterrupt end its loop."""
    try:
        return await work()
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        raise Raised(error) from error
