"""The CPU rollout `hf_cpu`: harness's own policy server, registered with verl as vLLM is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from typing import Any

import ray
import torch
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

from harness.util import start_trace
from harness_policy_server.decoder import Generation
from harness_policy_server.server import PolicyServer

NAME = "hf_cpu"
_ACTOR = "harness_policy_server_{rank}"


class VerlPolicyServer(PolicyServer):
    """The policy server in a Ray actor, which also takes verl's own calls and updated weights."""

    global_steps: int | None = None
    """Version of the loaded weights: the trainer's step that made them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        start_trace.born("policy server")
        with start_trace.span("model"):
            super().__init__(*args, **kwargs)
        self._admits = asyncio.Event()
        self._admits.set()
        self._under_way: set[asyncio.Task[Generation]] = set()

    async def load(self, weights: dict[str, torch.Tensor], version: int | None) -> None:
        """Load the trainer's weights."""
        await asyncio.to_thread(self.decoder.load_weights, weights)
        self.global_steps = version

    async def sample(
        self, prompt_ids: list[int], limit: int, sampling: dict[str, Any]
    ) -> Generation:
        """Sample as the policy server does; a call that verl aborts ends empty, reason `abort`."""
        await self._admits.wait()
        task = asyncio.create_task(super().sample(prompt_ids, limit, sampling))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()  # after its client disconnected
        return (
            Generation(prompt_ids, limit, finish_reason="abort")
            if task.cancelled()
            else task.result()
        )

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **_: Any
    ) -> TokenOutput:
        """Answer verl's own call: token ids in, token ids and log-probabilities out."""
        limit = (
            sampling_params.get("max_tokens")
            or sampling_params.get("max_new_tokens")
            or self.response_length
        )
        done = await self.sample(list(prompt_ids), limit, sampling_params)
        return TokenOutput(
            token_ids=done.token_ids,
            log_probs=done.logprobs,
            stop_reason="aborted" if done.finish_reason == "abort" else "completed",
            extra_fields={"global_steps": self.global_steps},
        )

    async def abort_all_requests(self, **_: Any) -> None:
        """Cancel running requests and hold new ones until `resume_generation`."""
        self._admits.clear()
        for task in self._under_way:
            task.cancel()

    async def resume_generation(self) -> None:
        """Admit requests again."""
        self._admits.set()

    async def _nothing(self, *_: Any, **__: Any) -> None:
        """Do nothing: a CPU has no memory to release, and the engine is idle at this point."""

    wake_up = sleep = clear_kv_cache = release_kv_cache = resume_kv_cache = _nothing
    set_global_steps = start_profile = stop_profile = _nothing


class CpuRollout(BaseRollout):
    """The trainer's end of weight sync: sends every parameter to this replica's server."""

    def __init__(
        self, config: object, model_config: object, device_mesh: object, replica_rank: int = -1
    ) -> None:
        super().__init__(config, model_config, device_mesh)
        self._server: Any = None

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(
        self,
        weights: Generator[tuple[str, torch.Tensor], None, None],
        global_steps: int | None = None,
        wire_format: str = "named_tensors",
        **_: Any,
    ) -> None:
        if wire_format != "named_tensors":
            raise NotImplementedError(f"the CPU rollout takes whole tensors, not {wire_format}")
        if self._server is None:
            self._server = ray.get_actor(_ACTOR.format(rank=int(os.environ.get("RANK", "0"))))
        whole = {}
        for name, tensor in weights:
            whole[name] = tensor.detach().to("cpu", torch.float32, copy=True)
        await self._server.load.remote(whole, global_steps)


class CpuReplica(RolloutReplica):
    """verl's handle of one policy server."""

    async def launch_servers(self) -> None:
        server = (
            ray.remote(VerlPolicyServer)
            .options(
                name=_ACTOR.format(rank=self.replica_rank),
                num_cpus=1,
                max_concurrency=self.max_concurrency,
            )
            .remote(
                self.model_config.path,
                self.config.max_num_seqs,
                self.config.response_length,
                self.config.max_model_len
                or self.config.prompt_length + self.config.response_length,
                self.model_config.get("trust_remote_code", False),
            )
        )
        self.servers = [server]
        self._server_handle = server
        self._server_address = await server.launch.remote()


def register() -> None:
    """Make `rollout.name=hf_cpu` known to this process."""
    # verl 0.9 has a public registry for servers; for their trainer-side ends only this table.
    _ROLLOUT_REGISTRY[(NAME, "async")] = f"{__name__}.CpuRollout"
    RolloutReplicaRegistry.register(NAME, lambda: CpuReplica)
