"""Prompts instead of weights: choose few-shot demonstrations for the same number of rollouts.

The search follows BootstrapFewShotWithRandomSearch of DSPy (Khattab et al. 2024), with successive
halving (Jamieson and Talwalkar 2016) instead of a full evaluation of each candidate:

1. Step 1 runs its tasks without demonstrations, sampled as in a training by GRPO. The policy's own
   calls in rollouts with the highest reward become the pool, never gold: at most one for each task
   and role (`collect` in `search.py`). If the highest reward is the lowest possible, it is empty.
2. `train.candidates` random sets of `train.shots` demonstrations per role are drawn from the pool.
   The prompts without demonstrations are one further candidate, with number 0.
3. Each later step distributes its rollouts over the candidates that are left. The steps are divided
   into ceil(log2(candidates)) rounds. After a round, the half with the lowest mean reward over all
   its scored rollouts is dropped. The last candidate is the policy.

Unscored rollouts are left out of the means. A demonstration is left out of rollouts of its own
task, because it has the answer. If demonstrations make a prompt too long, the rollout ends with
`prompt_too_long` and counts as a wrong one: it has reward 0, or the reward's lowest value if that
is below 0. So a candidate that does not fit loses, and the run continues.
The step's validation uses the candidate with the highest mean so far.

The gateway inserts demonstrations, so agents of all frameworks are used unchanged. A checkpoint is
one JSON file with the state of the search. The exported policy is the folder of the first policy
with a file `demonstrations.json`, which every evaluation uses.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import (
    LiveRun,
    Queue,
    RolloutWork,
    RowLog,
    RunFailed,
    RunFolder,
    Session,
    Task,
    Trainer,
    UserError,
    validation_due,
)
from harness.config import Config
from harness.errors import ConfigError
from harness.plugins import reward_of
from harness.policies import parser_of
from harness.policies.demonstrations import FILE, VERSION
from harness.policies.servers import Engine, server
from harness.records import Demonstrations
from harness.rollout.scored import Scored
from harness.runs.folder import read_json, replace_text
from harness.training.data import first_policy
from harness.training.provenance import model_hash
from harness.util.endpoints import Endpoint
from harness_demonstrations.options import options, refuse
from harness_demonstrations.search import Rollout, Search, collect, draw, last_steps

logger = logging.getLogger(__name__)

NAME = "demonstrations"
SEARCH_VERSION = 1
"""Version of a checkpoint's format."""
POLL_S = 0.3
"""Seconds between two reads of the rows of the current step."""
TRIED_STEPS = 2
"""Fewest steps: one that fills the pool, and one that tries candidates."""


class DemonstrationsTrainer(Trainer):
    """Chooses demonstrations; a checkpoint is the state of the search after a step."""

    def check(self, config: Config) -> None:
        refuse(config)

    def prepare(self, run: LiveRun) -> int:
        refuse(run.config)
        if run.steps < TRIED_STEPS:
            raise ConfigError(
                f"train.steps={run.steps}: the first step only collects demonstrations, so nothing "
                f"would be tried. Use {TRIED_STEPS} steps or more"
            )
        if run.done:
            _same_schedule(self.checkpoints(run.folder)[run.done], run.steps)
        return 0

    def checkpoints(self, folder: RunFolder) -> Mapping[int, Path]:
        found: dict[int, Path] = {}
        for file in folder.checkpoints.glob("*.json"):
            if file.stem.isdigit():
                found[int(file.stem)] = file
        return dict(sorted(found.items()))

    def export(self, folder: RunFolder, checkpoint: Path, target: Path) -> None:
        base = _first_policy(folder)
        search = _read(checkpoint)
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for file in sorted(base.iterdir()):
            if file.is_file():
                shutil.copyfile(file, partial / file.name)
        data = {
            "version": VERSION,
            "trainer": NAME,
            "demonstrations": search.demonstrations(search.leader),
            "tasks": search.tasks(search.leader),
        }
        text = json.dumps(data, indent=2, ensure_ascii=False)
        (partial / FILE).write_text(text + "\n", encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        os.replace(partial, target)

    def policy(self, folder: RunFolder, checkpoint: Path) -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(_first_policy(folder), dtype="float32").eval()

    def fit(self, run: LiveRun) -> None:
        config, limits = run.config, run.config.sampling
        length = limits.max_prompt_tokens + limits.max_response_tokens
        engine = Engine(
            parser_of(config, run.model, run.device), config.batch_invariant(run.device)
        )
        search = _read(self.checkpoints(run.folder)[run.done]) if run.done else None
        log = run.folder.logs / "policy.log"
        key = secrets.token_urlsafe(24)
        serve = server(run.device)
        with serve(run.model, run.device, length, log, engine, key=key) as url:
            _Training(run, Endpoint(url, run.model, key, token_ids=True), search).execute()


def _first_policy(folder: RunFolder) -> Path:
    """Return the folder of the policy that a run began with.

    Raises:
        UserError: Its files have changed since.
    """
    base = first_policy(folder.config(), folder)
    began_with = folder.read()["identity"]["model"]
    if (found := model_hash(base)) != began_with:
        raise UserError(
            f"{base} is another policy ({found}) than the one that {folder.path} began with "
            f"({began_with}). Put its files back"
        )
    return Path(base)


def _same_schedule(checkpoint: Path, steps: int) -> None:
    """Refuse to continue a search with another number of steps.

    Raises:
        ConfigError: Its rounds would end after other steps than those that were done.
    """
    began_with = read_json(checkpoint, "Remove it, and resume from an earlier step")["steps"]
    if began_with != steps:
        raise ConfigError(
            f"train.steps={steps}: the search began with {began_with} steps, which decide when "
            f"candidates are dropped. Resume with train.steps={began_with}, or start a new run"
        )


def _read(checkpoint: Path) -> Search:
    data = read_json(checkpoint, "Remove it, and resume from an earlier step")
    return Search.parse(data["search"])


class _Training(RolloutWork):
    """The steps of a run.

    Args:
        endpoint: Where the policy answers.
        search: The state of the newest checkpoint; None before the first step.
    """

    def __init__(self, run: LiveRun, endpoint: Endpoint, search: Search | None) -> None:
        mark = f"{run.folder.id}-{os.getpid()}"
        super().__init__(run.config, run.model, run.folder.logs, mark, run.roles)
        self._run = run
        self._endpoint = endpoint
        self._search = search
        self._rows = RowLog(run.folder, "steps")

    async def work(self, queue: Queue) -> None:
        run = self._run
        async with self.gateway.control() as control:
            await control.point(self._endpoint)
            session = Session(self.config, self.model, queue, control, run.folder)
            if run.validate_first:
                await self._validate(session, run.done)
            for step in range(run.done + 1, run.steps + 1):
                if full := run.full():
                    raise RunFailed(full)
                began = time.monotonic()
                rollout_s = await self._step(session, step)
                # The row before the checkpoint: a run that is killed in between repeats the step.
                figures = {"step_s": time.monotonic() - began, "rollout_s": rollout_s}
                self._rows.add([{"step": step, "data": figures | self._figures()}])
                self._save(step)
                await asyncio.to_thread(run.poll)
                if validation_due(self.config.train, run.steps, step):
                    await self._validate(session, step)

    async def _step(self, session: Session, step: int) -> float:
        """Run the rollouts of a step, update the search, and return the rollouts' seconds."""
        config, group_size = self.config, self.config.rollout.group_size
        batch = config.train.batch_size
        tasks = self._run.train[(step - 1) * batch : step * batch]
        search = self._search
        tried: list[tuple[Task, int, int]] = []
        pending: list[Awaitable[Scored]] = []
        for position, task in enumerate(tasks):
            for number in range(group_size):
                candidate = 0
                shown: Demonstrations = {}
                if search is not None:
                    candidate = search.candidate_for(position, number, group_size)
                    shown = search.demonstrations(candidate, task.id)
                tried.append((task, number, candidate))
                pending.append(session.rollout(task.id, "train", step, number, shown))
        began = time.monotonic()
        outcomes = await self._together(pending)
        rollout_s = time.monotonic() - began
        if search is None:
            rollouts = []
            for (task, number, _), outcome in zip(tried, outcomes, strict=True):
                rollouts.append(Rollout.of(task.id, number, outcome))
            self._search = self._begin(rollouts)
            return rollout_s
        for (_, _, candidate), outcome in zip(tried, outcomes, strict=True):
            search.note(candidate, outcome.used)
        # Rounds without a step of their own end with the last one.
        for last in last_steps(self._run.steps, len(search.candidates)):
            if last == step:
                search.halve()
        return rollout_s

    def _begin(self, rollouts: Sequence[Rollout]) -> Search:
        """Return the search with the pool of the first step."""
        train = options(self.config)
        low = reward_of(self.config.with_training_reward()).low
        pool = collect(rollouts, low)
        if not pool:
            logger.warning(
                "no rollout of the first step gave a demonstration: "
                "the prompts stay without demonstrations"
            )
        return Search.begin(pool, draw(pool, train.candidates, train.shots, self.config.seed))

    async def _validate(self, session: Session, step: int) -> None:
        """Validate the candidate that leads after a step."""
        search = self._search
        pending: list[Awaitable[Scored]] = []
        for task in self._run.val:
            shown: Demonstrations = {}
            if search is not None:
                shown = search.demonstrations(search.leader, task.id)
            pending.append(session.rollout(task.id, "val", step, 0, shown))
        await self._together(pending)
        await asyncio.to_thread(self._run.poll)

    async def _together(self, pending: Sequence[Awaitable[Scored]]) -> list[Scored]:
        """Return the outcomes of rollouts in their order, and show the progress meanwhile."""
        every = asyncio.gather(*pending)
        try:
            while not every.done():
                await asyncio.wait({every}, timeout=POLL_S)
                await asyncio.to_thread(self._run.poll)
        finally:
            every.cancel()
        return await every

    def _figures(self) -> dict[str, float]:
        """Return the search's figures of a step."""
        search = self._search
        assert search is not None
        sizes = [len(demonstrations) for demonstrations in search.pool.values()]
        figures: dict[str, float] = {
            "demonstrations/pool": sum(sizes),
            "demonstrations/survivors": len(search.survivors),
            "demonstrations/leader": search.leader,
        }
        # Before the second step no candidate was tried.
        if (mean := search.mean(search.leader)) is not None:
            figures["demonstrations/leader_mean"] = mean
        return figures

    def _save(self, step: int) -> None:
        """Write the checkpoint of a step."""
        assert self._search is not None
        folder = self._run.folder.checkpoints
        folder.mkdir(exist_ok=True)
        data = {
            "version": SEARCH_VERSION,
            "step": step,
            "steps": self._run.steps,
            "search": self._search.dump(),
        }
        replace_text(folder / f"{step}.json", json.dumps(data, ensure_ascii=False) + "\n")
