"""The contract of a queue of rollouts.

A run enqueues requests and collects attempts through a `Queue`. Runners, in processes of their own,
take requests from the same queue and have a `Host` make the attempts. `QueueBackend` is what a
plugin provides: it opens and connects queues, and runs both sides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from harness.records import Attempt
from harness.util.endpoints import Endpoint


def runner_name(number: int) -> str:
    """Return the name under which a queue knows the runner with a number."""
    return f"Worker-{number}"


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """One rollout to enqueue.

    Attributes:
        request: Plain data for the host; the queue does not read it.
        limit_s: Seconds after which the queue gives up an attempt that has not ended.
        attempts: Most attempts, including those lost with their runner.
        metadata: Plain data for people who look at the queue.
        agent: The agent that makes it. Only runners with this agent may take it.
    """

    request: Mapping[str, Any]
    phase: Literal["train", "val"]
    limit_s: float
    attempts: int
    metadata: Mapping[str, Any]
    agent: str = ""


@dataclass(frozen=True, slots=True)
class LostAttempt:
    """The end of a rollout without a record of its last attempt.

    Attributes:
        reason: Why there is no record, for example that the runner was killed.
    """

    attempt_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class HeldRollout:
    """A rollout that a runner has in progress.

    Attributes:
        started_s: Unix time.
    """

    rollout_id: str
    attempt_id: str
    request: Mapping[str, Any]
    started_s: float


@dataclass(frozen=True, slots=True)
class TakenRollout:
    """A rollout that a runner passes to its host.

    Attributes:
        policy: The gateway, as the run announced it.
    """

    rollout_id: str
    attempt_id: str
    request: Mapping[str, Any]
    policy: Endpoint


@dataclass(frozen=True, slots=True)
class FinishedAttempt:
    """An attempt as a host returns it.

    Attributes:
        retries: How often the rollout may fail like this before an attempt counts; 0 if this one
            counts in any case. Attempts that were lost with their runner are no failures.
    """

    attempt: Attempt
    retries: int


@dataclass(frozen=True, slots=True)
class DryRun:
    """One rollout of a dry run.

    Attributes:
        attempt: None if it did not end.
        spans: The queue's own record of it, as plain data.
    """

    attempt: Attempt | None
    spans: Sequence[Mapping[str, Any]]


class Host(Protocol):
    """Makes attempts for a runner."""

    async def attempt(self, taken: TakenRollout) -> FinishedAttempt:
        """Make one attempt.

        An exception, other than a cancellation, is a failed attempt.
        """

    async def aclose(self) -> None:
        """Close connections, in the event loop that ran the attempts."""


class Queue(ABC):
    """A queue of rollouts, for a run and for those who watch its runners."""

    @abstractmethod
    async def enqueue(self, requests: Sequence[QueuedRequest]) -> Sequence[str]:
        """Enqueue requests; return the ids of their rollouts in the same order."""

    @abstractmethod
    async def ended(self, rollout_ids: Sequence[str]) -> Sequence[str]:
        """Return immediately which of these rollouts have ended or are unknown."""

    @abstractmethod
    async def last_attempt(self, rollout_id: str) -> Attempt | LostAttempt | None:
        """Return the last attempt of a rollout that has ended; None if the rollout is unknown."""

    @abstractmethod
    async def forget(self, rollout_ids: Sequence[str]) -> None:
        """Drop the data of rollouts that have ended; ignore others."""

    @abstractmethod
    async def held(self, runner: str) -> Sequence[HeldRollout]:
        """Return the rollouts that a runner has in progress."""

    @abstractmethod
    async def hand_back(self, runner: str, reason: str) -> None:
        """Mark a runner's rollouts in progress as lost, so that other runners can take them."""

    @abstractmethod
    async def settle(self, attempt: Attempt) -> None:
        """Record an attempt that its runner could not finish; its rollout ends with it."""

    @abstractmethod
    async def heard(self) -> Mapping[str, float]:
        """Return the Unix time of each runner's last message, by name."""

    @abstractmethod
    async def close(self) -> None:
        """Close connections."""


class RunQueue(Queue):
    """The queue of one run, as the run's own process has it."""

    @property
    @abstractmethod
    def endpoint(self) -> str:
        """The URL for other processes, after the start."""

    @property
    @abstractmethod
    def key(self) -> str:
        """The key that other processes need; empty if none."""

    @abstractmethod
    async def start(self) -> None:
        """Start to serve other processes."""

    @abstractmethod
    async def welcome(self, invitation: Mapping[str, object], policy: Endpoint) -> None:
        """Announce the run.

        Args:
            invitation: Plain data for runners that ask for a run.
            policy: The gateway, which each taken rollout names.
        """

    @abstractmethod
    def expect(self, runners: Sequence[str], free: int, agent: str = "") -> None:
        """Announce that runners of an agent start, with room for `free` rollouts each."""

    @abstractmethod
    async def stop(self) -> None:
        """End the queue and drop all data of the run."""


class RemoteQueue(RunQueue):
    """A run's queue in a process of its own, which serves several runs.

    Args:
        url: URL of that process.
        run: Name of the run's folder.
    """

    @abstractmethod
    def __init__(self, url: str, run: str) -> None: ...

    @classmethod
    @abstractmethod
    def awaited(cls, url: str, say: Callable[[str], None]) -> None:
        """Wait until the process answers, with one message if it does not yet.

        Raises:
            UserError: It did not answer in time, or refuses.
        """

    @abstractmethod
    async def keep(self) -> None:
        """Create the queue again after every restart of the process, until cancelled.

        Raises:
            RunFailed: The process has not answered for too long, or refuses.
        """


class QueueBackend(ABC):
    """A plugin's implementation of queues and runners."""

    @abstractmethod
    def connect(self, url: str, key: str = "") -> Queue:
        """Return the queue at a URL, which another process serves."""

    @abstractmethod
    def open(self, host: str) -> RunQueue:
        """Return a new queue in this process, which will listen on `host`."""

    @abstractmethod
    def execute(self, queue: RunQueue, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the work of a run in an event loop, with its queue.

        After an interrupt it may return or raise; the work itself records how it ended.
        """

    @abstractmethod
    async def run_rollouts(
        self,
        queue: Queue,
        host: Host,
        number: int,
        concurrency: int,
        heartbeat: Callable[[], None],
        agent: str = "",
    ) -> None:
        """Act as a runner: take an agent's rollouts and make attempts at them until cancelled.

        After a cancellation, other runners get the rollouts in progress.

        Args:
            queue: A connected queue.
            host: Closed at the end.
            number: Number of the runner; `runner_name` returns its name.
            concurrency: Most concurrent rollouts.
            heartbeat: Called about once a second while the event loop is responsive.
            agent: The host's agent; rollouts of other agents are not taken.
        """

    @abstractmethod
    def dry_run(
        self,
        requests: Sequence[Mapping[str, Any]],
        host: Host,
        policy: Endpoint,
        concurrency: int,
    ) -> list[DryRun]:
        """Run a few requests within this process and return the results in order."""
