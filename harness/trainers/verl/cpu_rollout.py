"""The CPU rollout `hf_cpu`: a policy server around `decoder.Decoder`, registered with verl as vLLM is.

Two ways in: verl's token-in-token-out calls, and an OpenAI-compatible endpoint that answers
`return_token_ids` and `logprobs` as vLLM does. Response ids are random, never reused.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
import zlib
from array import array
from collections.abc import AsyncIterator, Generator
from typing import TYPE_CHECKING, Any

import orjson
import ray
import torch
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from harness.trainers.verl.decoder import Generation

NAME = "hf_cpu"
_ACTOR = "harness_policy_server_{rank}"


class PolicyServer:
    """The policy behind both ways in. Lives in a Ray actor of its own; weights arrive after every update."""

    def __init__(self, path: str, slots: int, response_length: int, max_length: int, trust_remote_code: bool) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from harness.trainers.verl.decoder import Decoder

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, trust_remote_code=trust_remote_code)
        self.tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
        stop = model.generation_config.eos_token_id
        stops = {*(stop if isinstance(stop, list) else [stop]), self.tokenizer.eos_token_id} - {None}
        self.decoder = Decoder(model.eval(), slots, max_length, stops)
        self.max_length = max_length
        self.response_length = response_length
        self.model_name = path
        self.version: int | None = None
        self._serving: asyncio.Task[None] | None = None

    async def launch(self) -> str:
        """Start the endpoint on a free loopback port and return `host:port`."""
        import socket

        import uvicorn

        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(self._app(), log_level="warning", access_log=False, http="httptools")
        self._serving = asyncio.create_task(uvicorn.Server(config).serve(sockets=[listener]))
        return f"127.0.0.1:{listener.getsockname()[1]}"

    async def load(self, weights: dict[str, torch.Tensor], version: int | None) -> None:
        """Put the trainer's weights in place."""
        await asyncio.to_thread(self.decoder.load_weights, weights)
        self.version = version

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **_: Any
    ) -> TokenOutput:
        """verl's own call: token ids in, token ids and log-probabilities out."""
        limit = sampling_params.get("max_tokens") or sampling_params.get("max_new_tokens") or self.response_length
        done = await self._run(list(prompt_ids), limit, sampling_params)
        return TokenOutput(
            token_ids=done.token_ids,
            log_probs=done.logprobs,
            stop_reason="completed",
            extra_fields={"global_steps": self.version},
        )

    async def _run(self, prompt_ids: list[int], limit: int, sampling: dict[str, Any]) -> Generation:
        from harness.trainers.verl.decoder import Generation

        loop = asyncio.get_running_loop()
        finished: asyncio.Future[None] = loop.create_future()

        def done(_: Generation) -> None:
            loop.call_soon_threadsafe(lambda: finished.done() or finished.set_result(None))

        temperature, seed = sampling.get("temperature"), sampling.get("seed")
        generation = Generation(
            prompt_ids=prompt_ids,
            max_tokens=max(1, min(limit, self.max_length - len(prompt_ids))),
            temperature=1.0 if temperature is None else float(temperature),
            top_p=float(sampling.get("top_p") or 1.0),
            # One stream a prompt, so that the calls of a rollout, which share its seed, draw apart.
            seed=None if seed is None else zlib.crc32(array("I", prompt_ids).tobytes(), seed),
            done=done,
        )
        self.decoder.submit(generation)
        try:
            await finished
        except asyncio.CancelledError:
            generation.cancelled = True
            raise
        if generation.error is not None:
            raise generation.error
        return generation

    def _app(self) -> Starlette:
        from starlette.applications import Starlette
        from starlette.routing import Route

        return Starlette(
            routes=[
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/health", self._models),
            ]
        )

    async def _models(self, request: Request) -> Response:
        return _json({"object": "list", "data": [{"id": self.model_name, "object": "model"}]})

    async def _chat(self, request: Request) -> Response:
        from starlette.responses import StreamingResponse

        try:
            body = orjson.loads(await request.body())
            messages = body["messages"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return _json({"error": {"message": "the body must be JSON with `messages`", "code": 400}}, 400)
        try:
            prompt_ids = self.tokenizer.apply_chat_template(
                messages,
                tools=body.get("tools"),
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
            )
        except Exception as error:
            return _json({"error": {"message": f"the chat template refused the messages: {error}", "code": 400}}, 400)
        if len(prompt_ids) >= self.max_length:
            message = f"the prompt has {len(prompt_ids)} tokens, prompt and response may have {self.max_length}"
            return _json({"error": {"message": message, "code": 400}}, 400)
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or self.response_length
        done = await self._run(prompt_ids, limit, body)
        answer = self._answer(body, prompt_ids, done)
        if body.get("stream"):
            return StreamingResponse(_events(answer), media_type="text/event-stream")
        return _json(answer)

    def _answer(self, body: dict[str, Any], prompt_ids: list[int], done: Generation) -> dict[str, Any]:
        text = self.tokenizer.decode(done.token_ids, skip_special_tokens=True)
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": done.finish_reason,
        }
        if body.get("logprobs"):
            choice["logprobs"] = {
                "content": [
                    {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
                    for token, logprob in zip(done.token_ids, done.logprobs, strict=True)
                ]
            }
        answer: dict[str, Any] = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body.get("model") or self.model_name,
            "choices": [choice],
            "usage": {
                "prompt_tokens": len(prompt_ids),
                "completion_tokens": len(done.token_ids),
                "total_tokens": len(prompt_ids) + len(done.token_ids),
            },
        }
        if body.get("return_token_ids"):
            choice["token_ids"] = done.token_ids
            answer["prompt_token_ids"] = prompt_ids
        return answer

    async def _nothing(self, *_: Any, **__: Any) -> None:
        """A CPU has no memory to hand over between phases; the engine is idle when these are called."""

    wake_up = sleep = clear_kv_cache = release_kv_cache = resume_kv_cache = _nothing
    abort_all_requests = resume_generation = set_global_steps = start_profile = stop_profile = _nothing


class CpuRollout(BaseRollout):  # type: ignore[misc]
    """The trainer's end of weight sync: sends every parameter to this replica's server."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
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
        whole = {name: tensor.detach().to("cpu", torch.float32, copy=True) for name, tensor in weights}
        await self._server.load.remote(whole, global_steps)


class CpuReplica(RolloutReplica):  # type: ignore[misc]
    """verl's handle of one policy server."""

    async def launch_servers(self) -> None:
        server = (
            ray.remote(PolicyServer)
            .options(
                name=_ACTOR.format(rank=self.replica_rank),
                num_cpus=1,
                max_concurrency=self.max_concurrency,
            )
            .remote(
                self.model_config.path,
                self.config.max_num_seqs,
                self.config.response_length,
                self.config.max_model_len or self.config.prompt_length + self.config.response_length,
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


def _json(body: dict[str, Any], status: int = 200) -> Response:
    from starlette.responses import Response

    return Response(orjson.dumps(body), status, media_type="application/json")


async def _events(answer: dict[str, Any]) -> AsyncIterator[bytes]:
    """The whole answer as one chunk of a stream: the engine has no partial text to show earlier."""
    choice = answer["choices"][0]
    chunk = {**answer, "object": "chat.completion.chunk"}
    usage = chunk.pop("usage")
    chunk["choices"] = [{**{k: v for k, v in choice.items() if k != "message"}, "delta": choice["message"]}]
    yield b"data: " + orjson.dumps(chunk) + b"\n\n"
    yield b"data: " + orjson.dumps({**chunk, "choices": [], "usage": usage}) + b"\n\n"
    yield b"data: [DONE]\n\n"
