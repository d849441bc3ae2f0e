"""Runs one agent over the scenarios, through the real gateway, and notes all that it did.

Each scenario is played alone, and then all at once: a runner has many rollouts under way on one agent, and what
they share must not show.

As a process: `python -m harness.parity.recorder AGENT --out FILE`, so that each framework has a process
and, where its plugin has one, an environment of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import subprocess
import tempfile
import threading
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import plugins
from harness.branches import in_order
from harness.errors import PluginError, last_line
from harness.gateway.dialects import Written
from harness.parity.swallowed import swallowed_error
from harness.programs import CANARY, PLAYS, Program, Scenario
from harness.records import Attempt, ToolCall, arguments_text
from harness.rollout.environments import python_for
from harness.rollout.request import RolloutRequest
from harness.toolbox import Agent

if TYPE_CHECKING:
    from harness.parity.tap import SentCall
    from harness.scripted.server import ReceivedRequest, Reply

SAMPLING = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 96}
"""Unlike any framework's defaults, so that a forgotten parameter shows."""
LIMITS = {"timeout_s": 5.0, "max_rows": 5, "max_chars": 400}
PATIENCE = 4.0
"""A scenario whose model hangs is played again with so many times its deadline where the agent itself used up most of
the first: an agent that computes does so again, one on a busy machine does not."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One request as the framework sent it: role of its URL, with its branch; messages; everything else in it."""

    role: str
    messages: list[dict[str, Any]]
    params: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Recording:
    """What one agent did in one scenario.

    Attributes:
        play: `alone`, or `together` with all other scenarios.
        executed: Tool calls, in order.
        prompt_chars: Characters of all messages sent.
        leaks: Places where the gold's canary turned up; must be empty.
        swallowed: What the agent did after a call that the server failed; empty where it let the error out.
    """

    scenario: str
    play: str
    calls: list[RecordedCall]
    executed: list[str]
    answer: str | None
    outcome: str
    detail: str
    prompt_chars: int
    leaks: list[str]
    swallowed: str = ""

    @property
    def label(self) -> str:
        """Its name in reports."""
        return self.scenario if self.play == "alone" else f"{self.scenario} ({self.play})"

    @classmethod
    def parse(cls, data: dict[str, Any]) -> Recording:
        """The recording from plain data."""
        return cls(**{**data, "calls": [RecordedCall(**call) for call in data["calls"]]})


async def record(
    agent: Agent,
    program: str,
    scenarios: Sequence[Scenario] | None = None,
    plays: Sequence[str] = PLAYS,
) -> list[Recording]:
    """Run one agent over its program's scenarios, one after the other and then all at once.

    Args:
        scenarios: All by default.
    """
    import httpx

    from harness.gateway.server import GatewayServer
    from harness.parity.tap import Tap
    from harness.rollout.host import run_attempt
    from harness.scripted.server import ScriptedServer

    of = plugins.program(program)
    scenarios = of.scenarios if scenarios is None else scenarios
    written = Written()
    cast = _Cast(of, written)
    recordings: list[Recording] = []
    with (
        tempfile.TemporaryDirectory(prefix="harness-parity-") as folder,
        ScriptedServer(cast) as server,
        GatewayServer() as gateway,
    ):
        limits = httpx.Limits(max_keepalive_connections=None)
        async with (
            gateway.control() as control,
            Tap(gateway, written) as tap,
            httpx.AsyncClient(trust_env=False, timeout=None, limits=limits) as http_client,
        ):
            await control.set_upstreams([server.base_url], model=server.model, token_ids=True)
            async with tap.control() as tapped:

                async def play(scenario: Scenario, how: str, attempt: int = 1) -> Recording:
                    timeout_s = scenario.timeout_s * PATIENCE ** (attempt - 1)
                    request = staged_request(program, scenario, Path(folder), timeout_s=timeout_s)
                    cast.prepare(scenario, how)
                    name, number, key = _rollout_id(scenario, how), str(attempt), gateway.key
                    done = await run_attempt(
                        agent, request, name, number, tapped, key, "scripted", http_client
                    )
                    found = _recording(scenario, how, done, in_order(tap.of(name, number)))
                    late = scenario.hangs and found.outcome == "timeout"
                    return await play(scenario, how, 2) if late and attempt == 1 else found

                if "alone" in plays:
                    recordings += [await play(scenario, "alone") for scenario in scenarios]
                if "together" in plays:
                    recordings += await _together(scenarios, cast, play)
    return recordings


async def _together(
    scenarios: Sequence[Scenario],
    cast: _Cast,
    play: Callable[[Scenario, str], Awaitable[Recording]],
) -> list[Recording]:
    """Play all scenarios at once.

    Those that hang begin first, so that they reach their last call before the others take the processor, and their
    deadline falls amid the others' calls.
    """
    hanging = [scenario for scenario in scenarios if scenario.hangs]
    begun = {
        scenario.name: asyncio.ensure_future(play(scenario, "together")) for scenario in hanging
    }
    if hanging:
        await asyncio.to_thread(cast.hung.wait, max(scenario.timeout_s for scenario in hanging))
    for scenario in scenarios:
        if not scenario.hangs:
            begun[scenario.name] = asyncio.ensure_future(play(scenario, "together"))
    return list(await asyncio.gather(*(begun[scenario.name] for scenario in scenarios)))


class _Cast:
    """Answers every rollout by the script of its own scenario, however the rollouts' calls interleave."""

    def __init__(self, program: Program, written: Written) -> None:
        self._written = written
        self.hung = threading.Event()
        """Set once a call of the play together hangs."""
        self._program = program
        self._scripts: dict[str, tuple[str, Callable[[Any], Reply]]] = {}
        self._calls: Counter[str] = Counter()

    def prepare(self, scenario: Scenario, play: str) -> None:
        """From its beginning."""
        self._scripts[_rollout_id(scenario, play)] = play, self._program.script(scenario)

    def __call__(self, request: ReceivedRequest) -> Reply:
        rollout_id = request.body["user"]
        play, script = self._scripts[rollout_id]
        reply = script(request)
        self._written.note(reply.tool_calls or ())
        if play == "alone":
            return reply
        if reply.hang:
            self.hung.set()
            return reply
        self._calls[rollout_id] += 1
        # Rollouts overtake one another, each time in the same order.
        steps = zlib.crc32(f"{rollout_id} {self._calls[rollout_id]}".encode()) % 8
        return replace(reply, delay_s=0.05 + 0.02 * steps)


def _rollout_id(scenario: Scenario, play: str) -> str:
    return f"parity-{scenario.name}-{play}"


def staged_request(
    program: str, scenario: Scenario, folder: Path, **changes: Any
) -> RolloutRequest:
    """The request of a scenario; files that it needs go to `folder`."""
    of = plugins.program(program)
    task, problem = of.stage(scenario, folder)
    where = of.environment or scenario.options["environment"]
    settings: dict[str, object] = {
        "problem": problem,
        "program": program,
        "environment": where,
        "payload": plugins.environment(where).payload(task, LIMITS),
        "phase": "train",
        "max_turns": scenario.max_turns,
        "sampling": SAMPLING,
        "tool_timeout_s": LIMITS["timeout_s"],
        "timeout_s": scenario.timeout_s,
        "retries": 0,
    }
    return RolloutRequest(**{**settings, **changes})


def _recording(
    scenario: Scenario, play: str, attempt: Attempt, calls: Sequence[SentCall]
) -> Recording:
    bodies = [call.body or {} for call in calls]
    return Recording(
        scenario=scenario.name,
        play=play,
        calls=[
            RecordedCall(
                call.role or f"not a role URL: {call.path}",
                list(body.get("messages", [])),
                {name: value for name, value in body.items() if name != "messages"},
            )
            for call, body in zip(calls, bodies, strict=True)
        ],
        executed=[spoken_tool_call(call) for call in attempt.tool_calls],
        answer=attempt.answer,
        outcome=attempt.outcome,
        detail=attempt.detail,
        prompt_chars=sum(
            len(str(message.get("content") or ""))
            for body in bodies
            for message in body.get("messages", [])
        ),
        leaks=[f"call {index}" for index, call in enumerate(calls) if CANARY.encode() in call.raw],
        swallowed=swallowed_error(attempt),
    )


def spoken_tool_call(call: ToolCall) -> str:
    """A tool call in one text: its arguments, with the name where there is no such tool."""
    return (
        f"{call.tool} {json.dumps(call.arguments)}"
        if call.fault == "unknown_tool"
        else arguments_text(call.arguments)
    )


def record_in_process(
    agent_name: str, scenarios: Sequence[str] = (), timeout_s: float = 600.0
) -> list[Recording]:
    """Record an agent in a process of its own, with its plugin's interpreter.

    Args:
        scenarios: Names; empty for all.

    Raises:
        PluginError: There is no such agent, or its process failed.
    """
    plugins.agent_spec(agent_name)
    python = python_for(plugins.registry().owner("agent", agent_name))
    with tempfile.TemporaryDirectory(prefix="harness-parity-") as folder:
        out = Path(folder) / "recording.json"
        command = [
            python,
            "-m",
            "harness.parity.recorder",
            agent_name,
            *scenarios,
            "--out",
            str(out),
        ]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise PluginError(
                f"agent {agent_name!r} did not get through the scenarios in {timeout_s:g} s"
            ) from error
        if done.returncode or not out.is_file():
            reason = last_line(done.stderr, "no message").removeprefix(
                "harness.errors.PluginError: "
            )
            raise PluginError(f"agent {agent_name!r} could not be recorded: {reason}")
        return [Recording.parse(row) for row in json.loads(out.read_text(encoding="utf-8"))]


def main(arguments: Sequence[str] | None = None) -> None:
    """Record one agent and write what it did as JSON."""
    parser = argparse.ArgumentParser(prog="python -m harness.parity.recorder", description=__doc__)
    parser.add_argument("agent")
    parser.add_argument("scenario", nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.CRITICAL)
    program = plugins.program_of(options.agent)
    known = plugins.program(program).scenarios
    chosen = [one for one in known if not options.scenario or one.name in options.scenario]
    agent = plugins.load(plugins.agent_spec(options.agent))()
    recordings = asyncio.run(record(agent, program, chosen))
    options.out.write_text(json.dumps([asdict(row) for row in recordings]), encoding="utf-8")


if __name__ == "__main__":
    main()
