"""The CPU's policy server under verl's pauses: what is under way is cut off, what comes waits."""

from __future__ import annotations

import asyncio
import importlib.util

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="needs verl")


async def test_an_abort_ends_calls_without_tokens_and_holds_new_ones_until_resumed() -> None:
    from harness.policies import resolve
    from harness.trainers.verl.cpu_rollout import VerlPolicyServer

    server = VerlPolicyServer(str(resolve("pocket-sql")), 4, 4000, 4096)
    greedy = {"temperature": 0.0}
    server.decoder.stop_ids = set()  # so that it goes on until it is cut off
    under_way = asyncio.create_task(server.sample([1, 2, 3], 4000, greedy))
    await asyncio.sleep(0.3)
    await server.abort_all_requests(reject_request=False)
    cut = await under_way
    assert (cut.finish_reason, cut.token_ids) == ("abort", [])
    late = asyncio.create_task(server.sample([1, 2, 3], 4, greedy))
    await asyncio.sleep(0.3)
    assert not late.done()
    await server.resume_generation()
    done = await late
    assert (done.finish_reason, len(done.token_ids)) == ("length", 4)
    server.decoder.stop()
