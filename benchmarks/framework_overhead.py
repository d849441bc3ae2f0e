"""Measure a framework's cost around each model call, against plain Python and plain HTTP.

    python benchmarks/framework_overhead.py [--json] [--repeat 3] [AGENT ...]

Each agent runs in a process of its own against a scripted model in another process that answers at
once, without the gateway in between. Every agent gets the same connection pool, and a framework
builds its client for each call, as in a run. The reference runs in turn with the agent, in the same
process, so that other load on the machine affects both. Times are the best of `--repeat` rounds;
ratios compare the two best.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from harness.contracts.toolbox import Agent, Report
    from harness.records import JSON

PROGRAM = "self_correcting_sql"
QUESTION = "How many singers are there?"
SCHEMA = "\n".join(
    f"CREATE TABLE t{n} (id INTEGER PRIMARY KEY, name TEXT, value REAL);" for n in range(12)
)
RESULT = "name | value\nAna | 3\nBo | 4"
CONCURRENT = 32


def script(request: Any) -> str:
    """Script the model of all agents: a wrong query, a remark, a right query, approval."""
    from harness_sql.self_correcting.prompts import APPROVED, REJECTED

    text = "\n".join(str(message.get("content")) for message in request.messages)
    if "You check whether" in text:
        return APPROVED if "SELECT 2" in text else f"It counts the wrong table.\n{REJECTED}"
    return (
        "```sql\nSELECT 2\n```"
        if "You repair" in text or REJECTED in text
        else "```sql\nSELECT 1\n```"
    )


class BenchToolbox:
    """A toolbox with executions that cost nothing."""

    max_turns = 3

    def __init__(self, base_url: str, http_client: Any) -> None:
        from harness_sql.self_correcting.prompts import PROMPTS

        self.prompts = PROMPTS
        self.http_client = http_client
        self._base_url = base_url

    @property
    def phase(self) -> Literal["train", "val"]:
        return "val"

    @property
    def payload(self) -> Mapping[str, JSON]:
        return {}

    @property
    def report(self) -> Report:
        from harness.contracts.toolbox import Report

        return Report()

    def llm(self, role: str) -> Any:
        from harness.contracts.toolbox import LLM

        return LLM(
            self._base_url,
            "k",
            "scripted",
            {"temperature": 0.7, "top_p": 0.9, "max_tokens": 96},
            60.0,
        )

    @property
    def tools(self) -> list[Any]:
        return []

    async def call(self, tool: str, arguments: Any) -> str:
        return RESULT

    async def call_all(self, calls: Any) -> list[str]:
        return [RESULT for _ in calls]

    async def execute(self, text: str) -> str:
        return RESULT

    def part(self, tools: Any, own: Any = None, *, at_once: bool = False) -> BenchToolbox:
        return self


async def measure(agent_name: str, base_url: str, repeat: int) -> dict[str, Any]:
    """Return all figures of one agent, in this process."""
    import httpx
    import psutil

    from harness.plugins import agent_spec, load
    from harness.records import Problem

    import openai  # noqa: F401  isort: skip  (in every runner; not what a framework adds)

    process = psutil.Process()
    rss_before = process.memory_info().rss
    began = time.perf_counter()
    agent = load(agent_spec(agent_name))()
    reference = load(agent_spec("reference_sql"))()
    import_s = time.perf_counter() - began
    problem = Problem("task", QUESTION, {"schema": SCHEMA})
    calls: list[int] = []

    async def count(request: httpx.Request) -> None:
        body = json.loads(request.content)
        calls.append(sum(len(str(message.get("content") or "")) for message in body["messages"]))

    async with httpx.AsyncClient(
        trust_env=False, timeout=None, event_hooks={"request": [count]}
    ) as client:
        await agent.solve(problem, BenchToolbox(base_url, client))
    figures: dict[str, Any] = {
        "calls": len(calls),
        "prompt_chars": sum(calls),
        "import_s": import_s,
    }
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
    async with httpx.AsyncClient(trust_env=False, timeout=None, limits=limits) as client:
        toolbox = BenchToolbox(base_url, client)

        async def many(one: Agent, rollouts: int, width: int) -> tuple[float, float]:
            """Return wall-clock and process CPU seconds for one rollout."""
            todo = iter(range(rollouts))

            async def work() -> None:
                for _ in todo:
                    await asyncio.create_task(
                        one.solve(problem, toolbox)
                    )  # a task each, as in a runner

            wall, cpu = time.perf_counter(), time.process_time()
            await asyncio.gather(*(asyncio.create_task(work()) for _ in range(width)))
            return (time.perf_counter() - wall) / rollouts, (time.process_time() - cpu) / rollouts

        for one in (reference, agent):
            await many(one, CONCURRENT, CONCURRENT)
        for name, width, rollouts in (("alone", 1, 30), ("concurrent", CONCURRENT, 4 * CONCURRENT)):
            rounds = [
                [await many(one, rollouts, width) for one in (reference, agent)]
                for _ in range(repeat)
            ]
            for which, at in (("base_", 0), ("", 1)):
                figures[f"{which}{name}_wall_ms"] = 1000 * min(pair[at][0] for pair in rounds)
                figures[f"{which}{name}_cpu_ms"] = 1000 * min(pair[at][1] for pair in rounds)
    figures["added_mb"] = (process.memory_info().rss - rss_before) / 2**20
    figures["runner_mb"] = process.memory_info().rss / 2**20
    return figures


def measure_all(names: list[str], repeat: int) -> dict[str, dict[str, Any]]:
    """Measure agents one after the other, each in a process of its own."""
    here = Path(__file__).resolve()
    path = os.pathsep.join([str(here.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-m", "harness.mock_model.server", "--script", f"{here.stem}:script"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    found: dict[str, dict[str, Any]] = {}
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{json.loads(server.stdout.readline())['port']}/v1"
        for name in names:
            sys.stderr.write(f"{name} ...\n")
            command = [
                sys.executable,
                str(here),
                "--one",
                name,
                "--url",
                url,
                "--repeat",
                str(repeat),
            ]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env=environment
            )
            if done.returncode:
                raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
            found[name] = json.loads(done.stdout.splitlines()[-1])
    finally:
        server.terminate()
        server.wait()
    return found


def table(found: dict[str, dict[str, Any]]) -> str:
    """Return the figures as Markdown; a call's time is a rollout's divided by its calls."""
    base = found["reference_sql"]

    lines = [
        "| agent | ms a call, alone | ratio | ms a call, 32 at once | ratio "
        "| CPU ms a call, 32 at once "
        "| ratio | added ms a rollout, alone / 32 at once | import s | runner MB | calls "
        "| prompt chars |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in found.items():
        cells = [f"`{name}`"]
        for key in ("alone_wall_ms", "concurrent_wall_ms", "concurrent_cpu_ms"):
            mine, ours = row[key] / row["calls"], row[f"base_{key}"] / base["calls"]
            cells += [f"{mine:.2f}", f"{mine / ours:.2f}x"]
        added = [row[key] - row[f"base_{key}"] for key in ("alone_wall_ms", "concurrent_wall_ms")]
        cells.append(" / ".join(f"{value:+.1f}" for value in added))
        cells += [f"{row['import_s']:.1f}", f"{row['runner_mb']:.0f}", str(row["calls"])]
        cells.append(f"{row['prompt_chars']} ({row['prompt_chars'] / base['prompt_chars']:.2f}x)")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "agents", nargs="*", help="of self_correcting_sql; default: all that are installed"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        figures = asyncio.run(measure(options.one, options.url, options.repeat))
        sys.stdout.write("\n" + json.dumps(figures) + "\n")
        return
    from harness.plugins import agents_of

    offered = agents_of(PROGRAM)
    names = options.agents or offered
    if strangers := sorted(set(names) - set(offered)):
        parser.error(
            f"no agent of {PROGRAM}: {', '.join(strangers)}. There are {', '.join(offered)}"
        )
    from harness.compare.busy import BUSY
    from harness.training.provenance import load

    if (before := load() or 0.0) > BUSY:
        sys.stderr.write(
            f"The machine is busy, with a load of {before:.1f} per processor: times include waiting "
            "for other processes. Compare ratios only, or measure again later.\n"
        )
    found = measure_all(
        ["reference_sql", *(name for name in names if name != "reference_sql")], options.repeat
    )
    sys.stdout.write((json.dumps(found, indent=2) if options.json else table(found)) + "\n")


if __name__ == "__main__":
    main()
