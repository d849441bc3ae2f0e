"""The CPU's policy server under verl's pauses: what is under way is cut off, what comes waits."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="needs verl")


async def test_an_abort_ends_calls_without_tokens_and_holds_new_ones_until_resumed() -> None:
    from harness.policies import resolve
    from harness_verl.cpu_rollout import VerlPolicyServer

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


async def test_a_prompt_that_leaves_no_room_for_the_response_is_refused_as_vllm_does() -> None:
    import httpx

    from harness.gateway.failures import UpstreamStatus
    from harness.policies import resolve
    from harness_policy_server.server import PolicyServer

    server = PolicyServer(str(resolve("pocket-sql")), slots=4, response_length=8, max_length=64)
    address = await server.launch()
    try:
        async with httpx.AsyncClient(
            base_url=f"http://{address}/v1", trust_env=False, timeout=60
        ) as client:

            async def ask(words: int, limit: int) -> httpx.Response:
                messages = [{"role": "user", "content": "name " * words}]
                return await client.post(
                    "/chat/completions", json={"messages": messages, "max_tokens": limit}
                )

            fits = await ask(4, 8)
            assert fits.status_code == 200 and fits.json()["usage"]["prompt_tokens"] < 56
            room = 64 - fits.json()["usage"]["prompt_tokens"]
            assert (await ask(4, room)).status_code == 200
            refused = [await ask(4, room + 1), await ask(200, 8)]
            assert [answer.status_code for answer in refused] == [400, 400]
            assert (
                UpstreamStatus(400, refused[0].content, "application/json", None).code
                == "prompt_too_long"
            )
    finally:
        server.decoder.stop()
        server._serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await server._serving
