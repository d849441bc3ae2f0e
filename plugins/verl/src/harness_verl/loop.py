"""verl's agent loop of a harness run: one verl session is one rollout through the store."""

from __future__ import annotations

import asyncio
from operator import attrgetter
from pathlib import Path
from typing import Any
from uuid import uuid4

from omegaconf import OmegaConf
from ray.exceptions import RayError
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from harness.rollout.request import Phase
from harness.rollout.session import Session
from harness.runs.folder import replace_text
from harness.util import start_trace
from harness_verl.names import ABOUT, LOST_FILE
from harness_verl.options import options
from harness_verl.rows import UNTRAINED, rows_of
from harness_verl.shared import SessionFile, phase_of
from harness_verl.taught import SCORE, Teacher

_sessions: dict[Path, asyncio.Future[Session]] = {}
"""This process's sessions, by session file."""
_teachers: dict[Path, Teacher] = {}
"""This process's makers of rows from gold answers, by session file."""


class HarnessAgentLoop(AgentLoopBase):
    """Returns the rows of a rollout's trained calls.

    A rollout with a score but nothing to train returns one masked token. A rollout without a score
    returns nothing: it is left out of its group, not scored 0. An exception is a fault of harness
    or of its services, and ends the run. A supervised training makes no rollouts of
    training tasks: the only trained row of a task has its gold answer.

    Args:
        session_file: Path of the run's `SessionFile`.
    """

    def __init__(self, *args: Any, session_file: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        start_trace.mark("asks for rollouts")
        self._session_file = Path(session_file)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        try:
            return await self._rollout(row)
        except RayError:  # the driver watches actors, which may end before this at the end of a run
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {str(error)[:300]}"
            text = f"a rollout of task {row['extra_info']['task_id']} was lost: {why}"
            replace_text(self._session_file.with_name(LOST_FILE), text)
            raise

    async def _rollout(self, row: dict[str, Any]) -> list[AgentLoopOutput]:
        session = await self._connected()
        step = int(row.get("global_steps") or 0)
        info = row["extra_info"]
        phase = phase_of(info)
        oldest = await self._version(phase, step)
        taught = OmegaConf.select(self.config, "trainer.v1.sampler.sampler_kwargs.taught")
        if phase == "train" and taught:
            return [self._taught(session, info["task_id"], int(row["session_id"]), oldest)]
        outcome = await session.rollout(info["task_id"], phase, step, int(row["session_id"]))
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
        train, values = options(session.config), dict(outcome.values)
        merges = bool(self.config.trainer.v1.sampler.sampler_kwargs.merges)
        rows = rows_of(outcome.calls, merge=merges)
        if not rows and train.batching == "by_rollout":
            rows = [UNTRAINED]
        outputs = []
        for one in rows:
            about = {}
            # Values have a field of their own, because verl gives all rows of a rollout the same
            # score.
            if merges or train.credit != "shared":
                calls = []
                for call, size in zip(one.calls, one.sizes, strict=True):
                    calls.append([outcome.kinds[call], size])
                about[ABOUT] = {
                    "calls": calls,
                    "values": values,
                    "saved": one.saved,
                    "again": one.again,
                }
            outputs.append(
                AgentLoopOutput(
                    prompt_ids=one.prompt_ids,
                    response_ids=one.response_ids,
                    response_mask=one.response_mask,
                    response_logprobs=one.logprobs,
                    **whole,
                    extra_fields=fields | about,
                )
            )
        return outputs

    def _taught(self, session: Session, task_id: str, number: int, version: int) -> AgentLoopOutput:
        """Return the row of a task's gold answer for its first session, else an untrained row.

        Args:
            number: The session's number in its group.
            version: Step of the weights that are trained.
        """
        one = None
        if number == 0 and (call := session.taught(task_id)) is not None:
            one = self._teacher(session).row(call)
        one = one or UNTRAINED
        return AgentLoopOutput(
            prompt_ids=one.prompt_ids,
            response_ids=one.response_ids,
            response_mask=one.response_mask,
            response_logprobs=one.logprobs,
            reward_score=SCORE,
            num_turns=0,
            metrics=AgentLoopMetrics(),
            extra_fields={
                "turn_scores": [],
                "tool_rewards": [],
                "reward_extra_info": {},
                "min_global_steps": version,
                "max_global_steps": version,
            },
        )

    def _teacher(self, session: Session) -> Teacher:
        """Return this process's maker of rows, which keeps the policy's tokenizer."""
        if self._session_file not in _teachers:
            path = str(self.config.actor_rollout_ref.model.path)
            _teachers[self._session_file] = Teacher(session.config, path)
        return _teachers[self._session_file]

    async def _version(self, phase: Phase, step: int) -> int:
        """Return the version of the weights that the servers sample with: the step that made them.

        Asked before and after a rollout, it only bounds the versions of the rollout's tokens: the
        answer over HTTP does not name a version. With `trainer_mode=sync` nothing samples while
        weights change, so the row's step gives the version.
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

    async def _connected(self) -> Session:
        """Return this process's session, with the policy's servers known to its gateway."""
        pending = _sessions.get(self._session_file)
        if pending is None:
            pending = _sessions[self._session_file] = asyncio.ensure_future(self._connect())
        return await asyncio.shield(pending)

    async def _connect(self) -> Session:
        session = (await SessionFile.awaited(self._session_file)).session()
        # The load balancer's server ids are addresses; verl offers no public way to them from here.
        servers = await self.server_manager._load_balancer.get_all_servers.remote()
        await session.connect(sorted(str(address) for address in servers))
        return session
