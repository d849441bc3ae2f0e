"""Run one agent over the scenarios, through the real gateway, and record its behaviour.

Each scenario is played alone, and then all concurrently: a runner has many rollouts in progress on
one agent, and their shared state must have no effect.

As a process: `python -m harness.parity.recorder AGENT --out FILE`, so that each framework has its
own process and, if its plugin has one, its own environment.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
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
from harness.contracts.programs import CANARY, PLAYS, Program, Scenario
from harness.contracts.toolbox import Agent
from harness.errors import PluginError, last_line
from harness.gateway.protocols import Written
from harness.parity.hidden_errors import swallowed_error
from harness.records import Attempt, ToolCall, arguments_text
from harness.rollout.environments import python_for
from harness.rollout.request import RolloutRequest
from harness.util.branches import in_order

if TYPE_CHECKING:
    from harness.gateway.server import GatewayServer
    from harness.mock_model.server import ReceivedRequest, Reply
    from harness.parity.recording_relay import SentCall

SAMPLING = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 96}
"""Sampling unlike any framework's defaults, so that a missing parameter is detected."""
LIMITS = {"timeout_s": 5.0, "max_rows": 5, "max_chars": 400}
PATIENCE = 4.0
"""Factor of the deadline for a second play of a scenario with a hanging model, if the agent itself
used up most of the first: a slow agent needs the time again, an agent on a busy machine does not.
"""

_TAKES = itertools.count(1)
"""Numbers of recordings. They distinguish the attempts of one scenario on one gateway."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One request as sent: role of its URL with branch, messages, and all other parameters."""

    role: str
    messages: list[dict[str, Any]]
    params: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Recording:
    """The behaviour of one agent in one scenario.

    Attributes:
        play: `alone`, or `together` with all other scenarios.
        executed: Tool calls, in order.
        prompt_chars: Characters of all messages sent.
        leaks: Places where the gold's canary turned up; must be empty.
        swallowed: What the agent did after a failed call; empty if it raised the error.
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
        """Name in reports."""
        return self.scenario if self.play == "alone" else f"{self.scenario} ({self.play})"

    @classmethod
    def parse(cls, data: dict[str, Any]) -> Recording:
        """Return the recording from plain data."""
        return cls(**{**data, "calls": [RecordedCall(**call) for call in data["calls"]]})


async def record(
    agent: Agent,
    program: str,
    scenarios: Sequence[Scenario] | None = None,
    plays: Sequence[str] = PLAYS,
    gateway: GatewayServer | None = None,
) -> list[Recording]:
    """Run one agent over its program's scenarios, one after the other and then all concurrently.

    Args:
        scenarios: All by default.
        gateway: A started gateway; a new one by default.
    """
    from harness.gateway.server import GatewayServer

    if gateway is not None:
        return await _recorded(agent, program, scenarios, plays, gateway)
    with GatewayServer() as own:
        return await _recorded(agent, program, scenarios, plays, own)


async def _recorded(
    agent: Agent,
    program: str,
    scenarios: Sequence[Scenario] | None,
    plays: Sequence[str],
    gateway: GatewayServer,
) -> list[Recording]:
    import httpx

    from harness.mock_model.server import ScriptedServer
    from harness.parity.recording_relay import RecordingRelay
    from harness.rollout.host import run_attempt

    of_program = plugins.program(program)
    scenarios = of_program.scenarios if scenarios is None else scenarios
    written = Written()
    cast = _Cast(of_program, written)
    take = next(_TAKES)
    recordings: list[Recording] = []
    with (
        tempfile.TemporaryDirectory(prefix="harness-parity-") as folder,
        ScriptedServer(cast) as server,
    ):
        limits = httpx.Limits(max_keepalive_connections=None)
        async with (
            gateway.control() as control,
            RecordingRelay(gateway, written) as tap,
            httpx.AsyncClient(trust_env=False, timeout=None, limits=limits) as http_client,
        ):
            await control.set_upstreams([server.base_url], model=server.model, token_ids=True)
            async with tap.control() as tapped:

                async def play(scenario: Scenario, how: str, attempt: int = 1) -> Recording:
                    timeout_s = scenario.timeout_s * PATIENCE ** (attempt - 1)
                    request = staged_request(program, scenario, Path(folder), timeout_s=timeout_s)
                    cast.prepare(scenario, how)
                    name, key = _rollout_id(scenario, how), gateway.key
                    number = f"{take}.{attempt}"
                    done = await run_attempt(
                        agent, request, name, number, tapped, key, "scripted", http_client
                    )
                    recording = _recording(scenario, how, done, in_order(tap.of(name, number)))
                    # `timeout`: the agent used up the time before its call reached the hanging
                    # model.
                    late = scenario.hangs and recording.outcome == "timeout"
                    return await play(scenario, how, 2) if late and attempt == 1 else recording

                # Alone first, on an agent that no other rollout has touched.
                if "alone" in plays:
                    for scenario in scenarios:
                        recordings.append(await play(scenario, "alone"))
                if "together" in plays:
                    recordings += await _together(scenarios, cast, play)
    return recordings


async def _together(
    scenarios: Sequence[Scenario],
    cast: _Cast,
    play: Callable[[Scenario, str], Awaitable[Recording]],
) -> list[Recording]:
    """Play all scenarios concurrently.

    Scenarios that hang begin first, so that they reach their last call before the others use the
    processor, and their deadline falls during the others' calls.
    """
    begun: dict[str, asyncio.Future[Recording]] = {}
    longest_s = 0.0
    for scenario in scenarios:
        if scenario.hangs:
            begun[scenario.name] = asyncio.ensure_future(play(scenario, "together"))
            longest_s = max(longest_s, scenario.timeout_s)
    if begun:
        await asyncio.to_thread(cast.hung.wait, longest_s)
    for scenario in scenarios:
        if not scenario.hangs:
            begun[scenario.name] = asyncio.ensure_future(play(scenario, "together"))
    # In the order of the scenarios, which is not the order in which they began.
    ordered = [begun[scenario.name] for scenario in scenarios]
    return list(await asyncio.gather(*ordered))


class _Cast:
    """Answer every rollout by its own scenario's script, in any order of the calls."""

    def __init__(self, program: Program, written: Written) -> None:
        self._written = written
        self.hung = threading.Event()
        """Set as soon as a call of the concurrent play hangs."""
        self._program = program
        self._scripts: dict[str, tuple[str, Callable[[Any], Reply]]] = {}
        self._calls: Counter[str] = Counter()

    def prepare(self, scenario: Scenario, play: str) -> None:
        """Reset the script."""
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
        # Rollouts overtake each other, in the same order every time.
        steps = zlib.crc32(f"{rollout_id} {self._calls[rollout_id]}".encode()) % 8
        return replace(reply, delay_s=0.05 + 0.02 * steps)


def _rollout_id(scenario: Scenario, play: str) -> str:
    return f"parity-{scenario.name}-{play}"


def staged_request(
    program: str, scenario: Scenario, folder: Path, **changes: Any
) -> RolloutRequest:
    """Return the request of a scenario; the files it needs are written to `folder`."""
    of_program = plugins.program(program)
    task, problem = of_program.stage(scenario, folder)
    where = of_program.environment or scenario.options["environment"]
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
    recorded, leaks = [], []
    prompt_chars = 0
    for index, call in enumerate(calls):
        params = dict(call.body or {})
        messages = list(params.pop("messages", []))
        # A call to another URL is recorded too: the comparison shows its path.
        recorded.append(RecordedCall(call.role or f"not a role URL: {call.path}", messages, params))
        for message in messages:
            prompt_chars += len(str(message.get("content") or ""))
        # In the bytes as sent: the gold may be in any field, also in a body that is no JSON.
        if CANARY.encode() in call.raw:
            leaks.append(f"call {index}")
    return Recording(
        scenario=scenario.name,
        play=play,
        calls=recorded,
        executed=[spoken_tool_call(call) for call in attempt.tool_calls],
        answer=attempt.answer,
        outcome=attempt.outcome,
        detail=attempt.detail,
        prompt_chars=prompt_chars,
        leaks=leaks,
        swallowed=swallowed_error(attempt),
    )


def spoken_tool_call(call: ToolCall) -> str:
    """Return a tool call as text: its arguments, with the name of an unknown tool."""
    if call.fault == "unknown_tool":
        return f"{call.tool} {json.dumps(call.arguments)}"
    return arguments_text(call.arguments)


def record_in_process(
    agent_name: str, scenarios: Sequence[str] = (), timeout_s: float = 600.0
) -> list[Recording]:
    """Record an agent in a separate process, with the interpreter of its plugin.

    Args:
        scenarios: Names; empty for all.

    Raises:
        PluginError: The agent does not exist, or its process failed.
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
    """Record one agent and write the result as JSON."""
    parser = argparse.ArgumentParser(prog="python -m harness.parity.recorder", description=__doc__)
    parser.add_argument("agent")
    parser.add_argument("scenario", nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.CRITICAL)
    program = plugins.program_of(options.agent)
    chosen = []
    for scenario in plugins.program(program).scenarios:
        if not options.scenario or scenario.name in options.scenario:
            chosen.append(scenario)
    agent = plugins.load(plugins.agent_spec(options.agent))()
    recordings = asyncio.run(record(agent, program, chosen))
    options.out.write_text(json.dumps([asdict(row) for row in recordings]), encoding="utf-8")


if __name__ == "__main__":
    main()
