"""Plays agents against a teacher and keeps what the model was asked and what it should have said.

Agents, gateway, tools and databases are real; the model is a script. Each agent plays in a process of its own, with its
plugin's interpreter: `python -m recipes.finetune.play AGENT JOBS OUT`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from harness import plugins
from harness.contracts.programs import Scenario
from harness.errors import ConfigError, PluginError, last_line
from harness.gateway.client import GatewayControl
from harness.mock_model.completion import Reply
from harness.rollout.environments import python_for
from harness.rollout.request import RolloutRequest
from harness.util.parsing import digest

AT_ONCE = 16
"""Rollouts under way in one agent's process."""


@dataclass(frozen=True, slots=True)
class Job:
    """One rollout to be played.

    Attributes:
        request: What the agent is given; no gold.
        replies: What the teacher says, as a scenario of the agent's program has it; or the teacher, picklable, for
            members who work at once and whose order nobody decides.
        noted: What is kept of the lesson beside it.
    """

    request: RolloutRequest
    replies: tuple[Reply, ...] | Callable[[Any], Reply]
    noted: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the model.

    Attributes:
        messages: Of the request, as the policy's server would get it; `tools` and `template` (the arguments of the
            chat template) alike.
        reply: The teacher's, as a message.
    """

    role: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    template: dict[str, Any]
    reply: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Transcript:
    """One rollout.

    Attributes:
        executed: Calls of tools, in order: the arguments, and the text that the agent was shown.
    """

    agent: str
    task: str
    noted: dict[str, Any]
    calls: list[Call]
    executed: list[tuple[dict[str, Any], str]]
    answer: str

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation of the last call, its reply included."""
        return [*self.calls[-1].messages, self.calls[-1].reply]

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Transcript:
        """From plain data."""
        return cls(**{**data, "calls": [Call(**call) for call in data["calls"]]})


def collect(jobs: Mapping[str, Sequence[Job]], keep: Path | None = None) -> list[Transcript]:
    """Transcripts of every agent, ordered by task; each has one of every task.

    Args:
        jobs: By agent.
        keep: Read from this file, if it is there, else written to it.

    Raises:
        ConfigError: The file is of other jobs.
        PluginError: An agent's process failed.
    """
    if keep is not None and keep.exists():
        return read(keep, hash_of(jobs))
    with (
        tempfile.TemporaryDirectory(prefix="transcripts-") as folder,
        ThreadPoolExecutor(len(jobs)) as pool,
    ):
        lists = list(pool.map(lambda name: _in_process(name, jobs[name], Path(folder)), jobs))
    by_task: dict[str, list[Transcript]] = defaultdict(list)
    for found in lists:
        for one in found:
            by_task[one.task].append(one)
    short = [task for task, found in by_task.items() if len(found) != len(jobs)]
    if short:
        raise PluginError(
            f"not every agent played task {short[0]}: {len(by_task[short[0]])} of {len(jobs)} did"
        )
    ordered = [one for found in by_task.values() for one in found]
    if keep is not None:
        write(ordered, keep, hash_of(jobs))
    return ordered


def hash_of(jobs: Mapping[str, Sequence[Job]]) -> str:
    """Of what agents are given and the teacher says, wherever the databases lie."""
    return digest({agent: list(map(_said, of_agent)) for agent, of_agent in jobs.items()})


def _said(job: Job) -> list[Any]:
    of = job.request
    return [asdict(of.problem), of.program, of.max_turns, of.sampling, job.noted, repr(job.replies)]


def gone_on(prompt: str, told: Sequence[str]) -> int:
    """The place of the conversation that a prompt goes on with, the longest that it begins with; else a new one's."""
    begun = [at for at, text in enumerate(told) if prompt.startswith(text)]
    return max(begun, key=lambda at: len(told[at]), default=len(told))


def dealt(file: str, seed: int, index: int, each: int = 10) -> list[Any]:
    """So many of a pickled list, for one index of a source, in an order that has each as often as any other."""
    found = _shuffled(file, seed)
    return [found[number % len(found)] for number in range(index * each, (index + 1) * each)]


@cache
def _shuffled(file: str, seed: int) -> list[Any]:
    found: list[Any] = pickle.loads(Path(file).read_bytes())
    Random(f"order/{seed}").shuffle(found)
    return found


def _in_process(name: str, jobs: Sequence[Job], folder: Path) -> list[Transcript]:
    python = python_for(plugins.registry().owner("agent", name))
    asked, out = folder / f"{name}.pickle", folder / f"{name}.jsonl"
    asked.write_bytes(pickle.dumps(jobs))
    command = [python, "-m", "recipes.finetune.play", name, str(asked), str(out)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )
    if done.returncode:
        raise PluginError(f"agent {name!r} could not play: {last_line(done.stderr, 'no message')}")
    return read(out)


async def play(name: str, jobs: Sequence[Job]) -> list[Transcript]:
    """One agent's transcripts, in this process.

    Raises:
        PluginError: The agent failed.
    """
    import httpx

    from harness.gateway.server import GatewayServer
    from harness.mock_model.server import ScriptedServer
    from harness.rollout.host import run_attempt

    agent = plugins.load(plugins.agent_spec(name))()
    at_once = asyncio.Semaphore(AT_ONCE)
    teacher = _Teacher(jobs)
    with ScriptedServer(teacher, remember=False) as server, GatewayServer() as gateway:
        async with (
            _Control(gateway.base_url, gateway.control_key) as control,
            httpx.AsyncClient(trust_env=False, timeout=None) as client,
        ):
            await control.set_upstreams([server.base_url], model=server.model, token_ids=True)

            async def one(job: Job) -> Transcript:
                task = job.request.problem.task_id
                async with at_once:
                    attempt = await run_attempt(
                        agent, job.request, task, "1", control, gateway.key, server.model, client
                    )
                if attempt.outcome != "ok":
                    raise PluginError(
                        f"agent {name!r} failed on {task}: {attempt.outcome}: {attempt.detail}"
                    )
                calls = [
                    Call(
                        transition.role,
                        list(map(dict, transition.messages)),
                        body.get("tools") or [],
                        body.get("chat_template_kwargs") or {},
                        _message(reply),
                    )
                    for transition in attempt.transitions
                    for body, reply in (teacher.said(task, transition.messages),)
                ]
                executed = [(dict(call.arguments), call.text) for call in attempt.tool_calls]
                return Transcript(
                    name, task, dict(job.noted), calls, executed, attempt.answer or ""
                )

            return list(await asyncio.gather(*map(one, jobs)))


def _message(reply: Reply) -> dict[str, Any]:
    calls = {"tool_calls": list(reply.tool_calls)} if reply.tool_calls else {}
    return {"role": "assistant", "content": reply.text, **calls}


class _Control(GatewayControl):
    """Has every request name its rollout, so that the teacher knows whom it answers."""

    async def open_attempt(self, rollout_id: str, attempt_id: str, **more: Any) -> None:
        more["sampling"] = {**more["sampling"], "user": rollout_id}
        await super().open_attempt(rollout_id, attempt_id, **more)


class _Teacher:
    """Says the next reply of the rollout's lesson, in the way that the agent asks for it."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._scripts = {
            job.request.problem.task_id: job.replies
            if callable(job.replies)
            else plugins.program(job.request.program).script(
                Scenario(
                    "lesson", "a question of a course", job.replies, job.request.problem.question
                )
            )
            for job in jobs
        }
        self._heard: dict[tuple[str, str], list[tuple[Mapping[str, Any], Reply]]] = defaultdict(
            list
        )

    def __call__(self, request: Any) -> Reply:
        rollout = request.body["user"]
        reply = self._scripts[rollout](request)
        if reply.status == 200:
            self._heard[rollout, _key(request.body["messages"])].append((request.body, reply))
        return reply

    def said(
        self, rollout: str, messages: Sequence[Mapping[str, Any]]
    ) -> tuple[Mapping[str, Any], Reply]:
        """The request with these messages, and its reply; of several alike the first that is left."""
        return self._heard[rollout, _key(messages)].pop(0)


def _key(messages: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps(messages, sort_keys=True, default=dict)


def write(transcripts: Sequence[Transcript], out: Path, played: str = "") -> None:
    """As JSON lines, after one with the hash of the jobs."""
    lines = (
        json.dumps(line, ensure_ascii=False)
        for line in ({"played": played}, *map(asdict, transcripts))
    )
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read(file: Path, played: str | None = None) -> list[Transcript]:
    """What `write` wrote.

    Raises:
        ConfigError: It is no such file, or of jobs with another hash than `played`.
    """
    try:
        head, *lines = map(json.loads, file.read_text(encoding="utf-8").rstrip("\n").split("\n"))
        of, transcripts = head["played"], [Transcript.parse(line) for line in lines]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{file} holds no transcripts that a recipe kept: name another file"
        ) from error
    if played not in (None, of):
        raise ConfigError(
            f"{file} was played with other questions, agents or settings: remove it, or name another"
        )
    return transcripts


def main(arguments: Sequence[str]) -> int:
    """Play one agent's jobs."""
    name, asked, out = arguments
    logging.basicConfig(level=logging.CRITICAL)
    write(asyncio.run(play(name, pickle.loads(Path(asked).read_bytes()))), Path(out))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
