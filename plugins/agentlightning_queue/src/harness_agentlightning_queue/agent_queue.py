"""The waiting rollouts of a store, by the agent that makes them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from contextvars import ContextVar

from agentlightning.store.collection.memory import DequeBasedQueue

AGENT = "agent"
"""Key of a rollout's metadata with the name of its agent."""
TAKING: ContextVar[str] = ContextVar("harness_taking", default="")
"""The agent of the runner that takes rollouts in this task."""


class AgentQueue(DequeBasedQueue[str]):
    """A queue of rollout ids, first in, first out for each agent.

    `dequeue` and `size` apply to the agent in `TAKING`, so that no runner receives a rollout of
    another agent. agentlightning's queue has one order for all runners.

    Args:
        agents: The agent of each rollout, by id. Ids that are not in it belong to the agent "".
    """

    def __init__(self, agents: Mapping[str, str]) -> None:
        super().__init__(str, id="rollout_queue")
        self._agents = agents
        self._waiting: dict[str, deque[str]] = defaultdict(deque)

    async def has(self, item: str) -> bool:
        return item in self._waiting[self._agents.get(item, "")]

    async def enqueue(self, items: Sequence[str]) -> Sequence[str]:
        for item in items:
            self._waiting[self._agents.get(item, "")].append(item)
        return items

    async def dequeue(self, limit: int = 1) -> Sequence[str]:
        waiting = self._waiting[TAKING.get()]
        taken: list[str] = []
        while waiting and len(taken) < limit:
            taken.append(waiting.popleft())
        return taken

    async def peek(self, limit: int = 1) -> Sequence[str]:
        return list(self._waiting[TAKING.get()])[: max(limit, 0)]

    async def size(self) -> int:
        return len(self._waiting[TAKING.get()])
