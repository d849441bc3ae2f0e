"""The contract of queues, on agentlightning's store over HTTP."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from agentlightning.utils import server_launcher

from harness.contracts.queue import (
    FinishedAttempt,
    LostAttempt,
    Queue,
    QueuedRequest,
    TakenRollout,
    runner_name,
)
from harness.records import Attempt, Outcome
from harness.rollout.queue_plugin import queue_backend
from harness.util.endpoints import Endpoint
from harness_agentlightning_queue.queue import START_TRIES, LocalQueue
from harness_agentlightning_queue.store import StoreClient

GATEWAY = Endpoint("http://127.0.0.1:1/v1", "policy", "key")


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Queue, Callable[[], Any]]]:
    """Yield a run's queue, and what connects to it."""
    backend = queue_backend()
    queue = backend.open("127.0.0.1")
    await queue.start()
    connected: list[Any] = []

    def connect() -> Any:
        connected.append(backend.connect(queue.endpoint, queue.key))
        return connected[-1]

    try:
        await queue.welcome({}, GATEWAY)
        yield queue, connect
    finally:
        for one in connected:
            await one.close()
        await queue.stop()


def asked(number: int, attempts: int = 3, agent: str = "") -> QueuedRequest:
    return QueuedRequest({"number": number}, "train", 30.0, attempts, {"step": number}, agent)


def attempt_of(taken: TakenRollout, outcome: Outcome = "ok") -> Attempt:
    return Attempt(
        taken.rollout_id, taken.attempt_id, outcome, "", "SELECT 1", (), (), (), 1.0, 2.0
    )


async def until(found: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(20):
        while not await found():
            await asyncio.sleep(0.02)


class Scripted:
    """A host that returns what a function makes of each rollout."""

    def __init__(self, play: Callable[[TakenRollout], Awaitable[FinishedAttempt]]) -> None:
        self._play = play
        self.taken: list[TakenRollout] = []
        self.closed = False

    async def attempt(self, taken: TakenRollout) -> FinishedAttempt:
        self.taken.append(taken)
        return await self._play(taken)

    async def aclose(self) -> None:
        self.closed = True


@asynccontextmanager
async def runner(
    queue: Queue, host: Scripted, number: int = 0, agent: str = ""
) -> AsyncIterator[None]:
    running = queue_backend().run_rollouts(queue, host, number, 4, lambda: None, agent)
    task = asyncio.create_task(running)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def test_a_rollout_goes_from_the_run_to_a_runner_and_back() -> None:
    async def main() -> None:
        async def solve(taken: TakenRollout) -> FinishedAttempt:
            return FinishedAttempt(attempt_of(taken), 0)

        host = Scripted(solve)
        async with served() as (queue, connect):
            ids = await queue.enqueue([asked(1), asked(2)])
            assert not await queue.ended(ids)
            async with runner(connect(), host):

                async def both() -> bool:
                    return len(await queue.ended(ids)) == 2

                await until(both)
            by_id = {one.rollout_id: one for one in host.taken}
            assert [by_id[rollout].request["number"] for rollout in ids] == [1, 2]
            assert {one.policy for one in host.taken} == {GATEWAY} and host.closed
            for rollout in ids:
                assert await queue.last_attempt(rollout) == attempt_of(by_id[rollout])
            assert set(await queue.heard()) == {runner_name(0)}
            await queue.forget(ids)
            assert await queue.last_attempt(ids[0]) is None
            assert await queue.ended(ids) == ids  # what is unknown has ended

    asyncio.run(main())


def test_failures_are_retried_as_often_as_the_host_allows() -> None:
    async def main() -> None:
        async def fail(taken: TakenRollout) -> FinishedAttempt:
            if taken.request["number"] == 3:
                raise RuntimeError("no attempt at all")
            return FinishedAttempt(attempt_of(taken, "endpoint_error"), taken.request["number"])

        host = Scripted(fail)
        async with served() as (queue, connect):
            ids = await queue.enqueue([asked(number, attempts=9) for number in (0, 2)])
            ids = [*ids, *await queue.enqueue([asked(3, attempts=2)])]
            async with runner(connect(), host):

                async def all_of_them() -> bool:
                    return len(await queue.ended(ids)) == 3

                await until(all_of_them)
            tries = [taken.request["number"] for taken in host.taken]
            assert [tries.count(number) for number in (0, 2, 3)] == [1, 3, 2]
            lost = await queue.last_attempt(ids[2])
            assert isinstance(lost, LostAttempt) and lost.reason == "the store ended it: failed"

    asyncio.run(main())


def test_what_a_stopped_or_lost_runner_had_goes_to_others() -> None:
    async def main() -> None:
        async def hang(taken: TakenRollout) -> FinishedAttempt:
            await asyncio.sleep(60)
            raise AssertionError("it was not cancelled")

        host, other = Scripted(hang), Scripted(hang)
        async with served() as (queue, connect):
            (rollout,) = await queue.enqueue([asked(7)])

            async def taken() -> bool:
                return bool(host.taken)

            async with runner(connect(), host):
                await until(taken)
                (held,) = await queue.held(runner_name(0))
                assert (held.rollout_id, held.request) == (rollout, {"number": 7})
            assert not await queue.held(runner_name(0))
            async with runner(connect(), other, 1):

                async def taken_again() -> bool:
                    return bool(other.taken)

                await until(taken_again)
                assert other.taken[0].rollout_id == rollout
                assert other.taken[0].attempt_id != host.taken[0].attempt_id
                await queue.hand_back(runner_name(1), "was killed")
                attempt = await queue.last_attempt(rollout)
                assert isinstance(attempt, LostAttempt) and attempt.reason == "runner was killed"

    asyncio.run(main())


def test_a_runner_takes_only_rollouts_of_its_agent_also_again() -> None:
    async def main() -> None:
        async def solve(taken: TakenRollout) -> FinishedAttempt:
            tries[taken.rollout_id] += 1
            outcome: Outcome = "endpoint_error" if tries[taken.rollout_id] == 1 else "ok"
            return FinishedAttempt(attempt_of(taken, outcome), 1)

        tries: Counter[str] = Counter()
        hosts = {agent: Scripted(solve) for agent in ("a", "b")}
        async with served() as (queue, connect):
            mixed = [asked(number, agent="ab"[number % 2]) for number in range(20)]
            ids = await queue.enqueue([*mixed, asked(20, agent="nobody has it")])
            async with runner(connect(), hosts["a"], 0, "a"):

                async def those_of_a() -> bool:
                    return len(await queue.ended(ids)) == 10

                await until(those_of_a)
                # The runner asks on, and gets nothing of another agent.
                await asyncio.sleep(0.3)
                async with runner(connect(), hosts["b"], 1, "b"):

                    async def all_but_one() -> bool:
                        return len(await queue.ended(ids)) == 20

                    await until(all_but_one)
            assert await queue.ended(ids) == ids[:20]
            for position, agent in enumerate("ab"):
                numbers = [taken.request["number"] for taken in hosts[agent].taken]
                assert sorted(numbers) == sorted([*range(position, 20, 2)] * 2)

    asyncio.run(main())


def test_a_settled_attempt_ends_its_rollout() -> None:
    async def main() -> None:
        async with served() as (queue, connect):
            (rollout,) = await queue.enqueue([asked(1)])
            client = connect().store
            assert isinstance(client, StoreClient)
            (one,) = await client.take("Worker-5", 0, 1)
            attempt = attempt_of(
                TakenRollout(rollout, one.attempt.attempt_id, {}, GATEWAY), "agent_error"
            )
            await connect().settle(attempt)
            assert await queue.ended([rollout]) == [rollout]
            assert await queue.last_attempt(rollout) == attempt
            assert not await queue.held("Worker-5")

    asyncio.run(main())


@pytest.mark.parametrize("taken", [1, START_TRIES])
def test_a_port_that_another_process_took_is_left_for_another(
    monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    """agentlightning chooses a free port a moment before it binds it."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            occupied = other.getsockname()[1]
            ports = iter([occupied] * taken)
            monkeypatch.setattr(
                server_launcher, "pick_unused_port", lambda: next(ports, None) or free_port()
            )
            queue = LocalQueue("127.0.0.1")
            if taken == START_TRIES:
                with pytest.raises(RuntimeError, match="did not start up"):
                    await queue.start()
                return
            await queue.start()
            try:
                assert f":{occupied}" not in queue.endpoint
                await queue.welcome({}, Endpoint("http://127.0.0.1:1/v1", "policy", "k"))
            finally:
                await queue.stop()

    free_port = server_launcher.pick_unused_port
    asyncio.run(main())
