"""Runners share the rollouts that wait, whoever asks first and however many it has room for."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from harness.config import load_config
from harness.mock_model.server import ReceivedRequest, ScriptedServer
from harness.plugins import make_task_set
from harness.rollout import load_balancing
from harness.rollout.load_balancing import LoadBalancer
from harness.rollout.session import Session
from harness.rollout.stack import RolloutWork
from harness.runs.folder import RunFolder
from harness_agentlightning_queue.store import RunStore

ROLLOUTS, RUNNERS = 256, 4


def test_whoever_asks_gets_what_an_even_deal_would_give_it() -> None:
    """Against a deal one by one to whoever has fewest under way, for any number of runners, rooms and rollouts."""
    draw = random.Random(7)
    for _ in range(300):
        names = [f"runner-{number}" for number in range(draw.randint(1, 9))]
        waiting, room = draw.randint(0, 60), {name: draw.randint(1, 20) for name in names}
        has = {name: draw.randint(0, room[name]) for name in names}
        shares = LoadBalancer()
        for name in names:
            shares.share(name, has[name], room[name] - has[name], 0)
        for name in draw.sample(names, len(names)):
            dealt = has.copy()
            for _ in range(waiting):
                takers = [one for one in names if dealt[one] < room[one]]
                if takers:
                    dealt[min(takers, key=lambda one: (dealt[one], one != name))] += 1
            taken = shares.share(name, has[name], room[name] - has[name], waiting)
            assert taken == dealt[name] - has[name], (name, has, room, waiting)
            has[name] += taken
            waiting -= taken
        assert waiting == 0 or has == room


def test_what_is_kept_for_a_runner_that_does_not_come_goes_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(load_balancing.time, "monotonic", lambda: now[0])
    shares = LoadBalancer()
    shares.expect(["a", "b"], 64)
    assert [shares.share("a", 0, 64, 32), shares.share("a", 16, 48, 16)] == [16, 0]
    assert shares.share("a", 0, 64, 16) == 8  # its own have ended: of what is left it has half
    now[0] = load_balancing.START_S + 1
    assert shares.share("a", 8, 56, 8) == 8
    assert shares.share("b", 0, 64, 40) == 28  # a has 16
    now[0] += load_balancing.LATELY_S + 1
    assert shares.share("c", 0, 64, 10) == 10


class AllAtOnce(ScriptedServer):
    """Answers nobody before every rollout has asked, so that all are under way at once on any machine."""

    async def _answer(self, request: web.Request, received: ReceivedRequest) -> web.StreamResponse:
        while len(self.requests) < ROLLOUTS:
            await asyncio.sleep(0.2)
        return await super()._answer(request, received)


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [64, 256])
@pytest.mark.timeout(240)
def test_no_runner_takes_most_of_a_step(
    concurrency: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = [f"rollout.concurrency={concurrency}", f"rollout.runners={RUNNERS}", "max_turns=1"]
    config = load_config(
        "cpu", agent="reference_sql", overrides=[*overrides, "rollout.timeout_s=120"]
    )
    tasks = make_task_set(config).load("val")
    taken = Counter[str | None]()
    dequeue = RunStore.dequeue_many_rollouts

    async def counted(self: RunStore, *, limit: int = 1, worker_id: str | None = None) -> Any:
        given = await dequeue(self, limit=limit, worker_id=worker_id)
        taken[worker_id] += len(given)
        return given

    monkeypatch.setattr(RunStore, "dequeue_many_rollouts", counted)
    outcomes = Counter[float | None]()

    class Work(RolloutWork):
        async def work(self, store: Any) -> None:
            async with self.gateway.control() as control:
                await control.set_upstreams([server.base_url], model="scripted", token_ids=True)
                session = Session(
                    config, "scripted", store, control, RunFolder(tmp_path), config.eval
                )
                asked = ((tasks[number % len(tasks)].id, number) for number in range(ROLLOUTS))
                done = await asyncio.gather(
                    *(session.rollout(task, "val", 0, number) for task, number in asked)
                )
                outcomes.update(one.reward for one in done)

    (tmp_path / "logs").mkdir()
    with AllAtOnce(lambda request: "```sql\nSELECT 1\n```") as server:
        Work(config, "scripted", tmp_path / "logs", f"sharing-{os.getpid()}").execute()
    assert outcomes.total() == ROLLOUTS and None not in outcomes
    assert sorted(taken.values()) == [ROLLOUTS // RUNNERS] * RUNNERS, taken
