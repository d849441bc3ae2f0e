"""verl's agent loop of a harness run: one verl session is one rollout through the store."""

from __future__ import annotations

import asyncio
from operator import attrgetter
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from harness import timeline
from harness.rollout.request import Phase
from harness.rollout.session import Session
from harness.trainers.verl.names import ABOUT
from harness.trainers.verl.rows import UNTRAINED, rows_of
from harness.trainers.verl.shared import phase_of, shared_session

_connecting: dict[int, asyncio.Future[None]] = {}


class HarnessAgentLoop(AgentLoopBase):
    """Returns the rows of a rollout's trained calls, or one masked token where there is a score but nothing to train.

    A rollout without a score returns nothing: it is left out of its group, not scored 0.

    Args:
        session_file: Path of the run's `SessionFile`.
    """

    def __init__(self, *args: Any, session_file: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        timeline.mark("asks for rollouts")
        self._session = shared_session(session_file)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        await self._connected(self._session)
        step = int(row.get("global_steps") or 0)
        info = row["extra_info"]
        phase = phase_of(info)
        oldest = await self._version(phase, step)
        outcome = await self._session.rollout(info["task_id"], phase, step, int(row["session_id"]))
        newest = await self._version(phase, step)
        if outcome.used is None:
            return []
        whole = {
            "reward_score": outcome.used,
            "num_turns": outcome.turns,
            "metrics": AgentLoopMetrics(generate_sequences=outcome.elapsed_s),
        }
        bounds = {"min_global_steps": oldest, "max_global_steps": newest}
        fields = {"turn_scores": [], "tool_rewards": [], "reward_extra_info": {}, **bounds}
        config, values = self._session.config.train, dict(outcome.values)
        merges = bool(self.config.trainer.v1.sampler.sampler_kwargs.merges)
        rows = rows_of(outcome.calls, merge=merges)
        if not rows and config.batching == "by_rollout":
            rows = [UNTRAINED]
        outputs = []
        for one in rows:
            told = {}
            if merges or config.credit != "shared":  # in a field of ours: verl pays all rows of a rollout alike
                calls = [[outcome.kinds[call], size] for call, size in zip(one.calls, one.sizes, strict=True)]
                told = {ABOUT: {"calls": calls, "values": values, "saved": one.saved, "again": one.again}}
            outputs.append(
                AgentLoopOutput(
                    prompt_ids=one.prompt_ids,
                    response_ids=one.response_ids,
                    response_mask=one.response_mask,
                    response_logprobs=one.logprobs,
                    **whole,
                    extra_fields=fields | told,
                )
            )
        return outputs

    async def _version(self, phase: Phase, step: int) -> int:
        """Version of the weights that the servers sample with: the step that made them.

        Asked before and after a rollout this bounds what its tokens came from, and only bounds it: the answer
        over HTTP does not name a version. In step with the trainer nothing samples while weights change, so the
        row's step says it.
        """
        if self.config.trainer.v1.trainer_mode == "sync":
            return step if phase == "val" else max(step - 1, 0)
        request = uuid4().hex
        address, server = await self.server_manager._acquire_server(request)
        try:
            version = await server.__ray_call__.remote(attrgetter("global_steps"))
        finally:
            self.server_manager._release_server(address, request)
        return int(version or 0)

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
