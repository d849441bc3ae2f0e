"""Plays the training tasks through every installed agent of `tool_loop` and keeps what the gateway recorded.

`python -m recipes.medical.transcripts --out FILE [--slips SHARE] [--limit N]`

The model is the scripted teacher; agents, gateway, tool and database are real. Each agent plays every task, in a
process of its own, so that all have equal shares.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from harness import plugins
from harness.config import load_config
from harness.errors import PluginError
from harness.gateway.client import GatewayControl
from harness.rollout.environments import python_for
from harness.rollout.request import RolloutRequest
from harness.scripted.server import ReceivedRequest, Reply, ScriptedServer
from harness.tasks.medical import MedicalTasks
from recipes.medical.generate import bundled
from recipes.medical.teacher import Lesson, lesson

PROGRAM = "tool_loop"
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Transcript:
    """One whole conversation.

    Attributes:
        slip: The mistake that the teacher made on purpose; empty in a golden one.
        mended: Whether its first query failed.
        tools: Definitions, as every request had them.
        messages: As the gateway recorded them, the last reply included.
    """

    agent: str
    task: str
    slip: str
    mended: bool
    tools: list[dict[str, Any]]
    messages: list[dict[str, Any]]


def collect(slip_share: float, seed: int, limit: int | None = None, names: Sequence[str] = ()) -> list[Transcript]:
    """Transcripts of every agent, ordered by task.

    Raises:
        PluginError: An agent's process failed.
    """
    names = names or plugins.agents_of(PROGRAM)
    with tempfile.TemporaryDirectory(prefix="medical-transcripts-") as folder, ThreadPoolExecutor(len(names)) as pool:
        lists = list(pool.map(lambda name: _in_process(name, Path(folder), slip_share, seed, limit), names))
    by_task: dict[str, list[Transcript]] = defaultdict(list)
    for found in lists:
        for one in found:
            by_task[one.task].append(one)
    short = [task for task, found in by_task.items() if len(found) != len(names)]
    if short:
        raise PluginError(f"not every agent played task {short[0]}: {len(by_task[short[0]])} of {len(names)} did")
    return [one for found in by_task.values() for one in found]


def _in_process(name: str, folder: Path, slip_share: float, seed: int, limit: int | None) -> list[Transcript]:
    python = python_for(plugins.registry().owner("agent", name))
    out = folder / f"{name}.jsonl"
    command = [python, "-m", "recipes.medical.transcripts", "--agent", name, "--out", str(out)]
    command += ["--slips", str(slip_share), "--seed", str(seed)] + (["--limit", str(limit)] if limit else [])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PluginError(f"agent {name!r} could not play: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return read(out)


async def play(name: str, slip_share: float, seed: int, limit: int | None) -> list[Transcript]:
    """One agent's transcripts, in this process."""
    import httpx

    from harness.gateway.server import GatewayServer
    from harness.rollout.host import run_attempt

    config = load_config("medical", agent=name)
    task_set = MedicalTasks()
    items = dict(bundled()[1]["train"])
    tasks = task_set.load("train")[:limit]
    lessons = {
        task.id: lesson(items[task.id], Random(f"medical/{seed}/{name}/{task.id}"), slip_share) for task in tasks
    }
    agent = plugins.load(plugins.agent_spec(name))()
    at_once = asyncio.Semaphore(_AT_ONCE)
    teacher = _Teacher(lessons)
    with ScriptedServer(teacher, remember=False) as server, GatewayServer() as gateway:
        async with (
            _Control(gateway.base_url, gateway.control_key) as control,
            httpx.AsyncClient(trust_env=False, timeout=None) as client,
        ):
            await control.set_upstreams([server.base_url], model=server.model, token_ids=True)

            async def one(task: Any) -> Transcript:
                request = RolloutRequest.build(task, task_set.context(task), config, "train")
                async with at_once:
                    attempt = await run_attempt(
                        agent, request, task.id, "1", control, gateway.key, server.model, client
                    )
                if attempt.outcome != "ok":
                    raise PluginError(f"agent {name!r} failed on {task.id}: {attempt.outcome}: {attempt.detail}")
                last = attempt.transitions[-1]
                messages = [*map(dict, last.messages), {"role": "assistant", "content": last.response_text}]
                said = lessons[task.id]
                return Transcript(name, task.id, said.slip, said.mended, teacher.tools[task.id], messages)

            return list(await asyncio.gather(*(one(task) for task in tasks)))


class _Control(GatewayControl):
    """Has every request name its rollout, so that the teacher knows whom it answers."""

    async def open_attempt(self, rollout_id: str, attempt_id: str, **more: Any) -> None:
        more["sampling"] = {**more["sampling"], "user": rollout_id}
        await super().open_attempt(rollout_id, attempt_id, **more)


class _Teacher:
    """Says the next reply of the rollout's lesson."""

    def __init__(self, lessons: Mapping[str, Lesson]) -> None:
        self._left = {task: list(one.replies) for task, one in lessons.items()}
        self.tools: dict[str, list[dict[str, Any]]] = {}
        """Of each rollout's last request."""

    def __call__(self, request: ReceivedRequest) -> Reply:
        rollout = request.body["user"]
        self.tools[rollout] = request.body["tools"]
        left = self._left[rollout]
        return left.pop(0) if left else Reply.failure(400, "the lesson is over")


def write(transcripts: Sequence[Transcript], out: Path) -> None:
    """As JSON lines."""
    lines = (json.dumps(asdict(one), ensure_ascii=False) for one in transcripts)
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read(file: Path) -> list[Transcript]:
    """What `write` wrote."""
    return [Transcript(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--agent", help="only this one, in this process")
    parser.add_argument("--slips", type=float, default=0.0, help="share of mistakes where a question invites one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, help="the first N tasks only")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.CRITICAL)
    if options.agent:
        found = asyncio.run(play(options.agent, options.slips, options.seed, options.limit))
    else:
        found = collect(options.slips, options.seed, options.limit)
    write(found, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
