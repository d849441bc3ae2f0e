"""A synchronous agent in a thread of its own, with its calls awaited in the rollout's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextvars import copy_context
from threading import Lock
from typing import Any, TypeVar

T = TypeVar("T")


class Bridge:
    """Connect the threads of one rollout's agent with the event loop.

    The first error of a call ends the rollout: smolagents would show it to the model and continue.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        self._under_way: set[Future[Any]] = set()
        self._raised: BaseException | None = None

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine in the event loop; called from the agent's threads.

        Raises:
            BaseException: What the coroutine raised, or what an earlier one did.
        """
        with self._lock:
            if self._raised is not None:
                work.close()
                raise self._raised
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._under_way.add(future)
        try:
            return future.result()
        except BaseException as error:
            with self._lock:
                self._raised = self._raised or error
            raise
        finally:
            with self._lock:
                self._under_way.discard(future)

    async def run(self, function: Callable[[], T]) -> T:
        """Return what a function returns that runs in a thread and uses `call`.

        Raises:
            BaseException: The first error of a call, else what the function raised.
        """
        with ThreadPoolExecutor(1, "smolagents") as executor:
            running = self._loop.run_in_executor(executor, copy_context().run, function)
            try:
                result = await asyncio.shield(running)
            except asyncio.CancelledError:
                self._stop()
                await asyncio.wait({running})
                running.exception()  # marks it as retrieved
                raise
            except Exception:
                if self._raised is not None:
                    raise self._raised from None
                raise
        if self._raised is not None:
            raise self._raised
        return result

    def _stop(self) -> None:
        """Cancel the calls under way and refuse further ones."""
        with self._lock:
            self._raised = self._raised or CancelledError()
            under_way = list(self._under_way)
        for future in under_way:
            future.cancel()
