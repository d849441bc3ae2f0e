"""The contract of every agent, as a test class to inherit.

    from harness.testing.contract import AgentContract

    class TestContract(AgentContract):
        agent = "langgraph_sql"

The tests cannot be overridden. A plugin that cannot pass one declares it openly, by pytest's
`xfail` on the class or on its run. Needs pytest and nothing else.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest

from harness.contracts.hookspecs import AgentSpec
from harness.contracts.programs import CANARY, Scenario
from harness.contracts.toolbox import Agent
from harness.gateway.server import GatewayServer
from harness.mock_model.server import ReceivedRequest, Reply
from harness.parity.comparison import changed_together
from harness.parity.hidden_errors import swallowed_error
from harness.parity.recorder import SAMPLING, Recording, record
from harness.plugins import agent_spec, load, program, program_of, registry
from harness.records import Attempt
from harness.rollout.tools import HostToolbox
from harness.testing.cancelling import PROMPT_END_S, faults_of_cancellations
from harness.testing.data_contract import Contract
from harness.testing.stage import Stage, agent_tasks, no_other_sockets, staged, until_idle
from harness.util.branches import parted

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # as in runners

LOADING = """
import json, os, sys
from harness.plugins import agent_spec, load
before, changed = dict(os.environ), {}
for agent in sys.argv[1:]:
    try:
        load(agent_spec(agent))()
    except Exception as error:  # only its own contract's fault
        changed[agent] = [f"it cannot be loaded: {error!r}"]
        continue
    changed[agent] = sorted(name for name in before.keys() | os.environ if before.get(name) != os.environ.get(name))
print(json.dumps(changed))
"""

IMPORTING = """
import json, os
from harness.plugins import registry
from harness.rollout.queue_plugin import queue_backend
before = dict(os.environ)
if registry().specs("queue"):
    queue_backend()
print(json.dumps(sorted(name for name in before.keys() | os.environ if before.get(name) != os.environ.get(name))))
"""


@cache
def _loaded_afresh(plugin: str) -> dict[str, list[str]]:
    """Load each agent of a plugin in a new process; return changes of the environment by agent."""
    agents = []
    for spec in registry().specs("agent"):
        if registry().owner("agent", spec.name) == plugin:
            agents.append(spec.name)
    # This process has imported too much to show the changes of a single agent.
    done = subprocess.run(
        [sys.executable, "-c", LOADING, *agents], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    changed: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    if any(changed.values()):
        # An agent may import what its runner has imported already, with the same effect.
        own = _changed_by_a_runner()
        for agent, names in changed.items():
            changed[agent] = [name for name in names if name not in own]
    return changed


@cache
def _changed_by_a_runner() -> frozenset[str]:
    """Return the variables that a runner changes for any agent, by its import of the queue."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTING], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return frozenset(json.loads(done.stdout.splitlines()[-1]))


class AgentContract(Contract):
    """Requirements of host, gateway and trainer. Set `agent` to the agent's name.

    Attributes:
        has_own_client: Whether the agent calls the model with another HTTP client than the
            toolbox's. It is then cancelled only while a call hangs, and not at any step.
    """

    agent: ClassVar[str] = ""
    has_own_client: ClassVar[bool] = False

    @pytest.fixture(scope="class")
    @classmethod
    def spec(cls) -> AgentSpec:
        """Return the agent's spec."""
        assert cls.agent, "set `agent` to the agent's name"
        return agent_spec(cls.agent)

    @pytest.fixture(scope="class")
    @classmethod
    def loaded(cls, spec: AgentSpec) -> Agent:
        """Return the agent; one for all tests, as a runner has one for all rollouts."""
        agent: Agent = load(spec)()
        return agent

    @pytest.fixture(scope="class")
    @classmethod
    def gateway(cls) -> Iterator[GatewayServer]:
        """Start a gateway process."""
        with GatewayServer() as server:
            yield server

    @pytest.fixture(scope="class")
    @classmethod
    def recordings(cls, loaded: Agent) -> Sequence[Recording]:
        """Record the agent in all its program's scenarios, each alone and then all concurrently."""
        return asyncio.run(record(loaded, program_of(cls.agent)))

    def scenario(self, *names: str) -> Scenario:
        """Return the first of these scenarios that the agent's program has."""
        scenarios = self._scenarios()
        return next(scenarios[name] for name in names if name in scenarios)

    def _scenarios(self) -> dict[str, Scenario]:
        every = program(program_of(self.agent)).scenarios
        return {scenario.name: scenario for scenario in every}

    def play(
        self,
        scenario: Scenario,
        gateway: GatewayServer,
        folder: Path,
        play: Any,
        script: Any = None,
    ) -> None:
        """Run one coroutine on its own stage."""

        async def run() -> None:
            async with staged(program_of(self.agent), scenario, gateway, folder, script) as stage:
                await play(stage)

        asyncio.run(run())

    def test_spec_names_the_roles_of_the_agent(self, spec: AgentSpec, loaded: Agent) -> None:
        assert spec.roles and tuple(spec.roles) == tuple(loaded.roles)

    def test_loading_leaves_the_environment_alone(self) -> None:
        name = agent_spec(self.agent).name
        assert not _loaded_afresh(registry().owner("agent", name))[name]

    def test_solves_the_scripted_episode(
        self, loaded: Agent, gateway: GatewayServer, tmp_path: Path
    ) -> None:
        scenario = self.scenario("wrong_then_fixed", "several_rounds")

        async def play(stage: Stage) -> None:
            before = dict(os.environ)
            with no_other_sockets(stage):
                attempt = await stage.attempt(loaded, "solve", stage.request())
                await until_idle()
            assert attempt.outcome == "ok", attempt.detail
            assert isinstance(attempt.answer, str) and attempt.answer
            assert attempt.answer == attempt.answer.strip()
            assert dict(os.environ) == before
            calls = stage.tap.calls
            paths = [call.path for call in calls]
            assert calls, paths
            for call in calls:
                assert parted(call.role)[0] in loaded.roles, paths
                assert call.body is not None
                sent = dict(call.body)
                # Clients may use the newer name of the same limit.
                if "max_completion_tokens" in sent:
                    sent["max_tokens"] = sent.pop("max_completion_tokens")
                assert {name: sent.get(name) for name in SAMPLING} == SAMPLING
                assert CANARY.encode() not in call.raw
            for transition in attempt.transitions:
                assert not transition.overridden

        self.play(scenario, gateway, tmp_path, play)

    def test_forwards_the_text_of_an_execution_verbatim(
        self, loaded: Agent, gateway: GatewayServer, tmp_path: Path
    ) -> None:
        async def play(stage: Stage) -> None:
            attempt = await stage.attempt(loaded, "verbatim", stage.request())
            assert attempt.tool_calls, "nothing was executed"
            result = attempt.tool_calls[0].text
            forwarded = False
            for call in stage.tap.calls:
                for message in (call.body or {})["messages"]:
                    forwarded = forwarded or result in str(message.get("content"))
            assert forwarded

        self.play(self.scenario("long_result"), gateway, tmp_path, play)

    def test_respects_max_turns(
        self, loaded: Agent, gateway: GatewayServer, tmp_path: Path
    ) -> None:
        async def play(stage: Stage) -> None:
            attempt = await stage.attempt(loaded, "turns", stage.request(max_turns=2))
            assert attempt.outcome == "ok", attempt.detail
            assert len(attempt.tool_calls) <= 2

        self.play(self.scenario("never_approved", "call_after_the_limit"), gateway, tmp_path, play)

    def test_leaves_tools_out_where_there_are_none(
        self, loaded: Agent, gateway: GatewayServer, tmp_path: Path
    ) -> None:
        """Servers refuse an empty list of tools, and a choice among none."""
        if "no_tools" not in self._scenarios():
            pytest.skip("its program has no scenario `no_tools`")

        async def play(stage: Stage) -> None:
            request = stage.request()
            assert not HostToolbox(request, lambda _: "", "", "", stage.http_client).tools, (
                "there are some"
            )
            await stage.attempt(loaded, "no_tools", request)
            sent = [dict(call.body or {}) for call in stage.tap.calls]
            assert sent
            for body in sent:
                assert "tools" not in body and "tool_choice" not in body, sent

        self.play(self.scenario("no_tools"), gateway, tmp_path, play)

    @pytest.mark.parametrize("name", ["server_error", "refused", "broken_connection"])
    def test_an_error_of_the_server_surfaces(
        self, loaded: Agent, gateway: GatewayServer, tmp_path: Path, name: str
    ) -> None:
        async def play(stage: Stage) -> None:
            attempt = await stage.attempt(loaded, name, stage.request())
            # The run's own parameters were accepted before, so the agent caused the refusal.
            assert not (fault := swallowed_error(attempt)), fault
            expected = "agent_error" if name == "refused" else "endpoint_error"
            assert attempt.outcome == expected, (attempt.outcome, attempt.detail)
            assert attempt.answer is None
            assert len(attempt.failures) == 1, (
                "the host repeats a failed call: set the client's retries to 0"
            )

        self.play(self.scenario(name), gateway, tmp_path, play)

    def test_a_prompt_that_is_too_long_ends_the_attempt(
        self, loaded: Agent, gateway: GatewayServer, tmp_path: Path
    ) -> None:
        """Check that a framework does not shorten the prompt, for example with a summary."""
        too_long = Reply.failure(
            400, "This model's maximum context length is 4096 tokens. However, you requested 5000."
        )

        def script(call: ReceivedRequest) -> Reply:
            return too_long if call.index == 0 else Reply("A summary.")

        async def play(stage: Stage) -> None:
            attempt = await stage.attempt(loaded, "too_long", stage.request())
            assert attempt.outcome == "prompt_too_long", (attempt.outcome, attempt.detail)
            assert attempt.answer is None
            codes = [failure.code for failure in attempt.failures]
            assert codes == ["prompt_too_long"] and not attempt.transitions, (
                "the agent continued after a prompt that did not fit"
            )

        self.play(self.scenario("refused"), gateway, tmp_path, play, script)

    def test_the_host_waits_for_a_limited_rate(
        self, loaded: Agent, gateway: GatewayServer, tmp_path: Path
    ) -> None:
        """Check that the gateway waits for a rate limit: the agent sees no error and no retry."""

        async def play(stage: Stage) -> None:
            attempt = await stage.attempt(loaded, "rate_limited", stage.request())
            assert (attempt.outcome, attempt.failures) == ("ok", ()), attempt.detail
            assert attempt.transitions[0].rate_limits == 1

        self.play(self.scenario("rate_limited"), gateway, tmp_path, play)

    def test_a_model_that_never_answers_is_the_endpoints_failure(
        self, recordings: Sequence[Recording]
    ) -> None:
        never = [recording for recording in recordings if recording.scenario == "timeout"]
        assert {recording.outcome for recording in never} == {"endpoint_error"}, never

    def test_concurrent_rollouts_stay_apart(
        self, loaded: Agent, gateway: GatewayServer, tmp_path: Path
    ) -> None:
        scenario = self.scenario("wrong_then_fixed", "several_rounds")
        scripts: dict[str, Any] = {}

        def script(request: Any) -> Reply:
            number = request.body["user"][-1]  # the rollout's number
            reply = scripts.setdefault(number, program(program_of(self.agent)).script(scenario))(
                request
            )
            return Reply(
                reply.text.replace("count(*)", number), tool_calls=reply.tool_calls, delay_s=0.05
            )

        async def play(stage: Stage) -> None:
            async def solve(number: str) -> Attempt:
                return await stage.attempt(
                    loaded, f"apart-{number}", stage.request(f"Who is singer number {number}?")
                )

            numbers = "1234"
            attempts = await asyncio.gather(*map(solve, numbers))
            for number, attempt in zip(numbers, attempts, strict=True):
                assert attempt.outcome == "ok", attempt.detail
                # Some members of a team do not get the question.
                assert f"singer number {number}" in str(attempt.transitions[0].messages)
                for call in attempt.transitions:
                    for other in numbers.replace(number, ""):
                        assert f"singer number {other}" not in str(call.messages)

        self.play(scenario, gateway, tmp_path, play, script)

    def test_scenarios_at_once_go_as_they_do_alone(self, recordings: Sequence[Recording]) -> None:
        differences = changed_together(recordings)
        assert not differences, "\n".join(map(str, differences))

    def test_cancellation_ends_promptly_and_leaves_nothing_running(
        self, loaded: Agent, gateway: GatewayServer, tmp_path: Path
    ) -> None:
        async def play(stage: Stage) -> None:
            request = stage.request()
            await stage.control.open_attempt(
                "cancel", "1", sampling=SAMPLING, timeout_s=30.0, roles=loaded.roles
            )
            toolbox = HostToolbox(
                request=request,
                url=lambda role: str(stage.control.agent_url("cancel", "1", role)),
                key=stage.gateway.key,
                model="scripted",
                http_client=stage.http_client,
            )
            lost: list[str] = []
            # The loop reports an exception that no code retrieved to its handler, and only there.
            asyncio.get_running_loop().set_exception_handler(
                lambda _, what: lost.append(f"{what['message']}: {what.get('exception')!r}")
            )
            before = agent_tasks(stage)
            work = asyncio.ensure_future(loaded.solve(request.problem, toolbox))
            await asyncio.to_thread(stage.server.wait_for_requests, 1, 20.0)
            began = time.monotonic()
            assert work.cancel(), f"ended during its first call: {work!r}"
            done, _ = await asyncio.wait({work}, timeout=PROMPT_END_S)
            assert done, f"still running {PROMPT_END_S:g} s after its cancellation"
            if not work.cancelled():
                ended = work.exception() or f"it returned {work.result()!r}"
                raise AssertionError(f"swallowed its cancellation: {ended!r}")
            while left := agent_tasks(stage) - before:
                assert time.monotonic() - began < PROMPT_END_S, f"left running: {left}"
                await asyncio.sleep(0.02)
            # Requests are counted where they arrive: the relay records the cancelled call later.
            sent = len(stage.server.requests)
            await asyncio.sleep(0.2)
            assert len(stage.server.requests) == sent, "called the model after its cancellation"
            gc.collect()  # reports exceptions of tasks that were never retrieved
            assert not lost, f"left an exception that no code retrieved: {lost}"
            await stage.control.close_attempt("cancel", "1")

        # The replies of some programs are not in `replies` alone, so that a script is needed.
        self.play(self.scenario("timeout"), gateway, tmp_path, play, lambda _: Reply(hang=True))

    def test_cancellation_at_any_step_ends_it(self, loaded: Agent, tmp_path: Path) -> None:
        if self.has_own_client:
            pytest.skip("the agent calls the model with a client of its own")
        scenario = self.scenario("wrong_then_fixed", "several_rounds")
        faults = faults_of_cancellations(loaded, program_of(self.agent), scenario, tmp_path)
        assert not faults, "\n".join(faults)
