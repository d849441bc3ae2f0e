"""verl's agent loop of a harness run: one verl session is one rollout through the store."""

from __future__ import annotations

import asyncio
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from harness.rollout.session import Session
from harness.trainers.verl.shared import mode_of, shared_session

_connecting: dict[int, asyncio.Future[None]] = {}


class HarnessAgentLoop(AgentLoopBase):
    """Returns one output a trained transition; an empty list where a rollout teaches nothing.

    verl leaves a session without outputs out of its group: masked, not scored 0.

    Args:
        session_file: Path of the run's `SessionFile`.
    """

    def __init__(self, *args: Any, session_file: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._session = shared_session(session_file)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        await self._connected(self._session)
        step = int(row.get("global_steps") or 0)
        info = row["extra_info"]
        outcome = await self._session.rollout(info["task_id"], mode_of(info), step, int(row["session_id"]))
        version = max(step - 1, 0)
        return [
            AgentLoopOutput(
                prompt_ids=list(sample.prompt_ids),
                response_ids=list(sample.response_ids),
                response_mask=[1] * len(sample.response_ids),
                response_logprobs=list(sample.logprobs),
                reward_score=sample.reward,
                num_turns=sample.turns,
                metrics=AgentLoopMetrics(generate_sequences=sample.latency_s),
                extra_fields={
                    "turn_scores": [],
                    "tool_rewards": [],
                    "reward_extra_info": {},
                    "min_global_steps": version,
                    "max_global_steps": version,
                },
            )
            for sample in outcome.samples
        ]

    async def _connected(self, session: Session) -> None:
        """Tell the gateway, once a process, where the policy's servers listen."""
        pending = _connecting.get(id(session))
        if pending is None:
            pending = _connecting[id(session)] = asyncio.ensure_future(self._connect(session))
        await asyncio.shield(pending)

    async def _connect(self, session: Session) -> None:
        # The load balancer's server ids are the servers' addresses; verl has no public way to them from here.
        servers = await self.server_manager._load_balancer.get_all_servers.remote()
        await session.connect(sorted(str(address) for address in servers))
