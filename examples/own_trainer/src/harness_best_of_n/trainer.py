"""Hill climbing: of several noisy copies of the policy, the one that is rewarded most is the next policy."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import (
    LiveRun,
    Phase,
    Queue,
    RolloutWork,
    RowLog,
    RunFailed,
    RunFolder,
    Session,
    Task,
    Trainer,
    fetched,
    validation_due,
)


class BestOfN(Trainer):
    """Checkpoints are the weights kept after a step, one file each."""

    def checkpoints(self, folder: RunFolder) -> Mapping[int, Path]:
        found = {
            int(file.stem): file
            for file in folder.checkpoints.glob("*.safetensors")
            if file.stem.isdigit()
        }
        return dict(sorted(found.items()))

    def export(self, folder: RunFolder, checkpoint: Path, target: Path) -> None:
        from transformers import AutoTokenizer

        self.policy(folder, checkpoint).save_pretrained(target)
        AutoTokenizer.from_pretrained(fetched(folder.config().policy)).save_pretrained(target)

    def policy(self, folder: RunFolder, checkpoint: Path) -> Any:
        from safetensors.torch import load_file
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(
            fetched(folder.config().policy), dtype="float32"
        )
        model.load_state_dict(load_file(checkpoint), strict=False)  # tied weights are there once
        return model.eval()

    def fit(self, run: LiveRun) -> None:
        _Climb(run, self.checkpoints(run.folder)).execute()


class _Climb(RolloutWork):
    def __init__(self, run: LiveRun, checkpoints: Mapping[int, Path]) -> None:
        super().__init__(
            run.config, run.model, run.folder.logs, f"{run.folder.id}-{os.getpid()}", run.roles
        )
        self._run = run
        self._checkpoints = checkpoints
        self._steps = RowLog(run.folder, "steps")

    async def work(self, queue: Queue) -> None:
        from safetensors.torch import load_file

        from harness_policy_server.server import PolicyServer

        run, limits = self._run, self.config.sampling
        length = limits.max_prompt_tokens + limits.max_response_tokens
        server = PolicyServer(
            run.model, slots=64, response_length=limits.max_response_tokens, max_length=length
        )
        kept = {name: one.detach().clone() for name, one in server.decoder.model.named_parameters()}
        if run.done:
            kept = load_file(self._checkpoints[run.done])
            server.decoder.load_weights(kept)
        try:
            async with self.gateway.control() as control:
                session = Session(self.config, self.model, queue, control, run.folder)
                await session.connect([await server.launch()])
                if run.validate_first:
                    await self._rewards(session, run.val, "val", run.done, 0)
                batch = self.config.train.batch_size
                for step in range(run.done + 1, run.steps + 1):
                    began = time.monotonic()
                    tasks = run.train[(step - 1) * batch : step * batch]
                    means = []
                    for number in range(self.config.rollout.group_size):
                        server.decoder.load_weights(self._noisy(kept, step, number))
                        means.append(await self._rewards(session, tasks, "train", step, number))
                    best = means.index(
                        max(means)
                    )  # the present policy, number 0, where nothing beats it
                    kept = self._noisy(kept, step, best)
                    server.decoder.load_weights(kept)
                    self._save(kept, step)
                    spread = max(means) - min(means)
                    data = {
                        "step_s": time.monotonic() - began,
                        "best_of_n/kept": best,
                        "best_of_n/spread": spread,
                    }
                    self._steps.add([{"step": step, "data": data}])
                    if validation_due(self.config.train, run.steps, step):
                        await self._rewards(session, run.val, "val", step, 0)
                    await asyncio.to_thread(run.poll)
        finally:
            server.decoder.stop()

    async def _rewards(
        self, session: Session, tasks: Sequence[Task], phase: Phase, step: int, number: int
    ) -> float:
        """Mean reward over tasks, each run once."""
        if full := self._run.full():
            raise RunFailed(full)
        done = await asyncio.gather(
            *(session.rollout(task.id, phase, step, number) for task in tasks)
        )
        await asyncio.to_thread(self._run.poll)
        return statistics.fmean([one.reward for one in done if one.reward is not None] or [0.0])

    def _save(self, weights: dict[str, Any], step: int) -> None:
        from safetensors.torch import save_file

        folder = self._run.folder.checkpoints
        folder.mkdir(exist_ok=True)
        save_file(weights, folder / "half.safetensors")
        os.replace(folder / "half.safetensors", folder / f"{step}.safetensors")

    def _noisy(self, weights: dict[str, Any], step: int, number: int) -> dict[str, Any]:
        """The candidate of a number: 0 is the policy itself, others have noise from run seed, step and number."""
        import torch

        if number == 0:
            return weights
        dice = torch.Generator().manual_seed(hash((self.config.seed, step, number)) % 2**31)
        size = self.config.train.learning_rate
        return {
            name: one + size * one.std() * torch.randn(one.shape, generator=dice)
            if one.numel() > 1
            else one
            for name, one in weights.items()
        }
