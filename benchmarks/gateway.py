"""Compare the gateway's cost with direct calls and with agentlightning's LiteLLM proxy.

    python benchmarks/gateway.py                     # the table, as Markdown
    python benchmarks/gateway.py --json --skip-litellm

One scripted model server in a process of its own replaces the model: it answers after a think time
that each prompt names (a half to one and a half of the mean, so that calls do not march in step),
with token ids and log-probabilities in vLLM's format. The same client calls it directly, through
the gateway and through agentlightning's `LLMProxy`, round by round, so that other load on the
machine affects all three. Overhead is a call's latency less its think time; "added" is a route's
quantile less that of the direct calls. All processes share the machine's cores; requests per second
per core divide by the CPU time of the proxy's own processes alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import platform
import random
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import aiohttp
import orjson
import psutil

from harness.gateway.server import GatewayServer
from harness.mock_model.completion import Reply, prompt_token_ids, response_token_ids
from harness.mock_model.server import ReceivedRequest

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 512}
ROLE = "write_query"
MODEL = "scripted"
WORDS = ("SELECT name, COUNT(*) FROM singer JOIN concert USING (singer_id) GROUP BY name; " * 99)[
    :250
]


def think(request: ReceivedRequest) -> Reply:
    """Script the model server: wait for the seconds in the prompt's first word."""
    return Reply(WORDS, delay_s=float(request.messages[0]["content"].partition(" ")[0]))


@dataclasses.dataclass(frozen=True)
class Route:
    """One way to the model: address, key, and the processes for its CPU time."""

    name: str
    url: str
    key: str
    processes: tuple[psutil.Process, ...] = ()
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Measured:
    """Samples of one route over all rounds."""

    overheads_s: list[float] = dataclasses.field(default_factory=list)
    wall_s: float = 0.0
    cpu_s: float = 0.0
    requests: int = 0
    failures: int = 0

    def quantile_ms(self, share: float) -> float:
        ordered = sorted(self.overheads_s)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@contextlib.contextmanager
def model_server() -> Iterator[str]:
    """Run the scripted model in its own process, and yield its base URL."""
    command = [
        sys.executable,
        "-m",
        "harness.mock_model.server",
        "--script",
        "gateway:think",
        "--forget",
    ]
    here = os.path.dirname(os.path.abspath(__file__))
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": here}
    )
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}/v1"
    finally:
        process.terminate()
        process.wait()


@contextlib.asynccontextmanager
async def gateway_route(upstream: str) -> AsyncIterator[Route]:
    """Run the gateway in its own process, with one open attempt."""
    with GatewayServer() as gateway:
        async with gateway.control() as control:
            await control.set_upstreams([upstream], model=MODEL, token_ids=True)
            await control.open_attempt("r", "0", sampling=SAMPLING, timeout_s=3600, roles=[ROLE])
            process = psutil.Process(gateway.pid)
            yield Route("gateway", gateway.agent_url("r", "0", ROLE), gateway.key, (process,))
            transitions, failures = await control.close_attempt("r", "0")
            print(
                f"gateway: {len(transitions)} transitions, {len(failures)} failures",
                file=sys.stderr,
            )


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.asynccontextmanager
async def litellm_route(upstream: str) -> AsyncIterator[Route]:
    """Run agentlightning's `LLMProxy` with its defaults; a store in another process gets spans."""
    # Offline it would try for ten seconds to download its price list.
    os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_LOG="ERROR")
    from agentlightning.llm_proxy import LLMProxy
    from agentlightning.store.client_server import LightningStoreClient
    from agentlightning.utils.server_launcher import PythonServerLauncherArgs

    logging.disable(logging.WARNING)
    port = free_port()
    # The store is not the proxy: it runs apart, and its CPU time is not counted.
    command = [sys.executable, "-m", "agentlightning.cli.store", "--host", "127.0.0.1"]
    server = subprocess.Popen(
        [*command, "--port", str(port), "--log-level", "ERROR"], stdout=subprocess.DEVNULL
    )
    await _listening(port)
    store = LightningStoreClient(f"http://127.0.0.1:{port}")
    before = set(psutil.Process().children(recursive=True))
    # This LiteLLM does not start without a master key, and its /health then asks for the key too.
    key = "sk-" + secrets.token_hex(16)
    proxy = LLMProxy(
        store=store,
        launcher_args=PythonServerLauncherArgs(
            port=free_port(),
            host="127.0.0.1",
            launch_mode="mp",
            healthcheck_url="/health/liveliness",
            startup_timeout=120.0,
        ),
        litellm_config={"general_settings": {"master_key": key}},
        model_list=[
            {
                "model_name": MODEL,
                "litellm_params": {"model": f"hosted_vllm/{MODEL}", "api_base": upstream},
            }
        ],
    )
    await proxy.start()
    try:
        resources = await store.add_resources({"main_llm": proxy.as_resource()})
        rollout = await store.start_rollout(
            input={}, mode="train", resources_id=resources.resources_id
        )
        llm = resources.resources["main_llm"].with_attempted_rollout(rollout)
        processes = tuple(set(psutil.Process().children(recursive=True)) - before)
        # LiteLLM asks for token ids by itself; log-probabilities are the caller's to ask for.
        yield Route("litellm", llm.endpoint.rstrip("/") + "/v1", key, processes, {"logprobs": True})
    finally:
        await proxy.stop()
        await store.close()
        server.terminate()
        server.wait()


async def _listening(port: int, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return


async def load(
    route: Route,
    prompt: str,
    delay_s: float,
    requests: int,
    concurrency: int,
    measured: Measured | None,
) -> None:
    """Send `requests` calls, `concurrency` at a time, over kept-alive connections."""
    headers = {"authorization": f"Bearer {route.key}", "content-type": "application/json"}
    url = route.url + "/chat/completions"
    overheads: list[float] = []
    failures = 0
    delays = random.Random(requests)
    left = iter([round(delay_s * delays.uniform(0.5, 1.5), 6) for _ in range(requests)])

    async def caller(session: aiohttp.ClientSession) -> None:
        nonlocal failures
        for delay in left:
            messages = [{"role": "user", "content": f"{delay} {prompt}"}]
            data = orjson.dumps({"model": MODEL, "messages": messages, **SAMPLING, **route.extra})
            began = time.perf_counter()
            async with session.post(url, data=data, headers=headers) as response:
                raw = await response.read()
                if response.status != 200:
                    failures += 1
                    if failures == 1:
                        print(route.name, response.status, raw[:300], file=sys.stderr)
            overheads.append(time.perf_counter() - began - delay)

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=120)
    ) as session:
        cpu_s, began = _cpu_s(route.processes), time.perf_counter()
        await asyncio.gather(*(caller(session) for _ in range(concurrency)))
        wall_s, cpu_s = time.perf_counter() - began, _cpu_s(route.processes) - cpu_s
    if measured is not None:
        measured.overheads_s += overheads
        measured.wall_s += wall_s
        measured.cpu_s += cpu_s
        measured.requests += requests
        measured.failures += failures


def _cpu_s(processes: tuple[psutil.Process, ...]) -> float:
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


async def measure(
    options: argparse.Namespace, delay_s: float, concurrency: int
) -> tuple[dict[str, Measured], float]:
    """Measure all routes to one model server, in shuffled rounds after a warm-up.

    Returns:
        Samples by route, and the mean number of CPU cores that other processes kept busy.
    """
    prompt = ("CREATE TABLE singer (singer_id INTEGER, name TEXT); " * 99)[: options.prompt_tokens]
    shuffle = random.Random(0)
    async with contextlib.AsyncExitStack() as stack:
        upstream = stack.enter_context(model_server())
        routes = [Route("direct", upstream, "", extra={"logprobs": True, "return_token_ids": True})]
        routes.append(await stack.enter_async_context(gateway_route(upstream)))
        if not options.skip_litellm:
            routes.append(await stack.enter_async_context(litellm_route(upstream)))
        measured = {route.name: Measured() for route in routes}
        sizes = {"litellm": options.litellm_requests}
        for route in routes:
            await load(route, prompt, delay_s, 4 * concurrency, concurrency, None)
        busy_s, ours_s, began = *_machine_cpu_s(), time.perf_counter()
        for _ in range(options.rounds):
            for route in shuffle.sample(routes, len(routes)):
                requests = sizes.get(route.name, options.requests)
                await load(route, prompt, delay_s, requests, concurrency, measured[route.name])
                # LiteLLM exports spans after the calls; keep them out of the next route's round.
                await asyncio.sleep(1.0 if route.name == "litellm" else 0.2)
        all_s, all_ours_s = _machine_cpu_s()
        others_s = (all_s - busy_s) - (all_ours_s - ours_s)
        return measured, max(0.0, others_s / (time.perf_counter() - began))


def _machine_cpu_s() -> tuple[float, float]:
    """Return the machine's CPU seconds so far without idle time, and this benchmark's."""
    times = psutil.cpu_times()
    own = psutil.Process()
    return sum(times) - times.idle - times.iowait, _cpu_s((own, *own.children(recursive=True)))


def row(measured: Mapping[str, Measured], name: str) -> dict[str, Any]:
    """Return the figures of one route, with its overhead over direct calls."""
    one, direct = measured[name], measured["direct"]
    figures: dict[str, Any] = {
        "p50_ms": one.quantile_ms(0.5),
        "p99_ms": one.quantile_ms(0.99),
        "requests_per_s": one.requests / one.wall_s,
        "failures": one.failures,
        "added_p50_ms": one.quantile_ms(0.5) - direct.quantile_ms(0.5),
        "added_p99_ms": one.quantile_ms(0.99) - direct.quantile_ms(0.99),
    }
    if one.cpu_s:
        figures["requests_per_core_s"] = one.requests / one.cpu_s
        figures["cpu_ms"] = 1000 * one.cpu_s / one.requests
    return figures


def table(results: list[dict[str, Any]]) -> str:
    """Return Markdown; the last column compares the gateway with LiteLLM in the same run."""
    lines = [
        "| think time | concurrency | route | overhead p50 ms | p99 ms "
        "| added p50 ms | added p99 ms "
        "| requests/s | CPU ms/call | requests/s per core | against LiteLLM |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for result in results:
        routes = result["routes"]
        for name, figures in routes.items():
            cells = [f"{result['delay_s'] * 1000:.0f} ms", str(result["concurrency"]), name]
            cells += [f"{figures['p50_ms']:.1f}", f"{figures['p99_ms']:.1f}"]
            added = name != "direct"
            cells += [
                f"{figures[key]:.2f}" if added else "" for key in ("added_p50_ms", "added_p99_ms")
            ]
            cells += [f"{figures['requests_per_s']:.0f}"]
            cells += [f"{figures['cpu_ms']:.2f}" if added else ""]
            cells += [f"{figures['requests_per_core_s']:.0f}" if added else ""]
            versus = ""
            if name == "gateway" and (other := routes.get("litellm")):
                speed = figures["requests_per_s"] / other["requests_per_s"]
                core = figures["requests_per_core_s"] / other["requests_per_core_s"]
                versus = f"{speed:.1f}x requests/s, {core:.1f}x per core"
            lines.append("| " + " | ".join([*cells, versus]) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--requests", type=int, default=1600, help="calls a round, direct and gateway"
    )
    parser.add_argument(
        "--litellm-requests", type=int, default=320, help="calls a round through LiteLLM"
    )
    parser.add_argument("--prompt-tokens", type=int, default=800)
    parser.add_argument(
        "--cases", default="0.25:32,0.25:1,0:32", help="think time in s : concurrency, ..."
    )
    parser.add_argument("--skip-litellm", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    # LiteLLM's process writes banners to stdout, which is for the results.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    results = []
    for case in options.cases.split(","):
        delay_s, _, concurrency = case.partition(":")
        scaled = argparse.Namespace(**vars(options))
        if int(concurrency) == 1 and float(delay_s):
            scaled.requests = scaled.litellm_requests = 40
        measured, others = asyncio.run(measure(scaled, float(delay_s), int(concurrency)))
        routes = {name: row(measured, name) for name in measured}
        results.append(
            {
                "delay_s": float(delay_s),
                "concurrency": int(concurrency),
                "others_busy_cores": round(others, 2),
                "routes": routes,
            }
        )
        print(
            f"{case}: others kept {others:.2f} cores busy",
            table(results[-1:]),
            sep="\n",
            file=sys.stderr,
        )
    facts = {
        "cores": psutil.cpu_count(),
        "others_busy_cores": [result["others_busy_cores"] for result in results],
        "machine": platform.machine(),
        "python": platform.python_version(),
        "prompt_tokens": len(
            prompt_token_ids([{"role": "user", "content": "x" * options.prompt_tokens}])
        ),
        "response_tokens": len(response_token_ids(WORDS)),
    }
    if options.json:
        print(json.dumps({"facts": facts, "results": results}, indent=2), file=out)
    else:
        print(table(results), file=out)
        print("\n" + ", ".join(f"{name} {value}" for name, value in facts.items()), file=out)


if __name__ == "__main__":
    main()
