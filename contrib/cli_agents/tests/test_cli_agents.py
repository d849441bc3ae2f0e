"""Command-line agents, through a real gateway against a scripted model."""

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from harness.errors import PluginError
from harness.gateway.server import GatewayServer
from harness.plugins import agent_spec, load, program
from harness.rollout.processes import RUN_MARK
from harness.testing.contract import AgentContract
from harness.testing.stage import staged
from harness_cli_agents.process import reason_in

AGENTS = f"{Path(__file__).parent}/agents/commands.py"


class TestTiny(AgentContract):
    agent = f"{AGENTS}:Tiny"


@pytest.fixture(scope="module")
def gateway():
    with GatewayServer() as server:
        yield server


def made(name):
    return load(agent_spec(f"{AGENTS}:{name}"))()


def running(pid):
    """Return whether a process runs; one that no parent has waited for does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def played(name, gateway, folder, scenario="no_call", **changes):
    """Return an agent's attempt at a scenario."""
    scene = next(one for one in program("tool_loop").scenarios if one.name == scenario)

    async def play():
        async with staged("tool_loop", scene, gateway, folder) as stage:
            return await stage.attempt(made(name), folder.name, stage.request(**changes))

    return asyncio.run(play())


@pytest.mark.parametrize("name", ["Tiny", "ToFile", "LastReply"])
def test_an_answer_is_read_from_the_output_a_file_or_the_last_reply(name, gateway, tmp_path):
    attempt = played(name, gateway, tmp_path, scenario="one_call")
    assert (attempt.outcome, attempt.answer) == ("ok", "There are 3 singers."), attempt.detail
    assert [(one.tool, one.ok) for one in attempt.tool_calls] == [("query_database", True)]
    assert [one.role for one in attempt.transitions] == ["assistant", "assistant"]
    assert attempt.transitions[-1].response_ids
    assert attempt.transitions[0].offered_tools == ("query_database",)


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("Fails", "ended with status 1: out of paper"),
        ("NoFile", "left no answer in answer.txt"),
        ("BadJson", "wrote no JSON object with a text 'result': '{}'"),
        ("WithoutTools", "ended without reading the list of the environment's tools"),
        ("TooMuch", "stdout has more than 4 MiB"),
    ],
)
def test_a_command_without_an_answer_is_the_agents_error(name, detail, gateway, tmp_path):
    attempt = played(name, gateway, tmp_path)
    assert attempt.outcome == "agent_error"
    assert detail in attempt.detail


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("codex\nERROR: Incomplete response\ntokens used\n3,435\n", "ERROR: Incomplete response"),
        ("Traceback:\n  File\nValueError: no schema\n", "ValueError: no schema"),
        ("loading\nout of paper\n12\n", "out of paper"),
        ("the tool's result: error in SQL\nstream disconnected\n", "stream disconnected"),
        ("12\n", "12"),
        ("\n", ""),
    ],
)
def test_the_reason_of_a_failure_is_the_last_error_and_no_statistics(output, reason):
    assert reason_in(output) == reason


def test_a_command_that_calls_no_model_is_no_attempt(gateway, tmp_path):
    assert played("Json", gateway, tmp_path).outcome == "no_transitions"


def test_a_command_that_repeats_a_failed_call_is_ended_at_the_first(gateway, tmp_path):
    attempt = played("Repeats", gateway, tmp_path, scenario="server_error")
    assert (attempt.outcome, len(attempt.failures)) == ("endpoint_error", 1), attempt.detail


def test_a_models_error_stays_the_endpoints_though_the_command_fails(gateway, tmp_path):
    attempt = played("Tiny", gateway, tmp_path, scenario="server_error")
    assert attempt.outcome == "endpoint_error", attempt.detail


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NotThere", "'no-such-agent' is not on PATH. Install it: npm install -g no-such-agent"),
        ("Unknown", r"\$question in '\$question' is no placeholder"),
    ],
)
def test_an_agent_that_cannot_run_is_refused_before_a_run(name, message):
    with pytest.raises(PluginError, match=message):
        made(name)


class Alone:
    """A toolbox without a gateway: for commands that call no model."""

    max_turns = 1
    tools = ()
    http_client = None

    def __init__(self):
        self.prompts = program("tool_loop").prompts

    def llm(self, role):
        from harness.contracts.toolbox import LLM

        return LLM(f"http://gateway.test:1/r/1/1/{role}/v1", "key-of-run", "policy", {}, 5.0)


def problem():
    from harness.records import Problem

    return Problem("1", "?", {})


def test_a_command_has_only_the_variables_that_it_needs(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-the-parent")
    monkeypatch.setenv("PYTHONPATH", "/of/the/parent")
    monkeypatch.setenv(RUN_MARK, "a-run")
    folder, variables = json.loads(asyncio.run(made("Environment").solve(problem(), Alone())))
    shown = dict(variables)
    shown.pop("LC_CTYPE", None)  # Python's own
    assert shown.pop("PATH") == os.environ["PATH"]
    assert shown.pop("HOME") == shown.pop("TMPDIR") == folder
    assert shown.pop(RUN_MARK) == "a-run"
    assert shown.pop("NO_PROXY") == shown.pop("no_proxy") == "127.0.0.1,localhost"
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        assert shown.pop(name) == shown.pop(name.upper()) == "http://127.0.0.1:9"
    assert shown.keys() - {"LANG", "LC_ALL"} == {
        "TERM", "NO_COLOR", "DO_NOT_TRACK", "DISABLE_TELEMETRY", "OTEL_SDK_DISABLED"
    }  # fmt: skip
    assert not Path(folder).exists()


def test_a_cancelled_attempt_ends_the_command_and_what_left_its_group(tmp_path):
    agent, pids = made("Hangs"), tmp_path / "pids"
    agent.line = replace(agent.line, variables={"PIDS": str(pids)})

    async def play():
        work = asyncio.ensure_future(agent.solve(problem(), Alone()))
        while not pids.exists() and not work.done():
            await asyncio.sleep(0.01)
        begun = [int(one) for one in pids.read_text().split()]
        assert all(map(psutil.pid_exists, begun))
        work.cancel()
        await asyncio.wait({work})
        assert work.cancelled()
        return begun

    assert not any(running(one) for one in asyncio.run(play()))


def test_the_deadline_of_an_attempt_is_the_commands(gateway, tmp_path, monkeypatch):
    pids = tmp_path / "pids"
    hangs = load(agent_spec(f"{AGENTS}:Hangs"))
    monkeypatch.setattr(hangs, "line", replace(hangs.line, variables={"PIDS": str(pids)}))
    attempt = played("Hangs", gateway, tmp_path, timeout_s=2.0)
    assert (attempt.outcome, attempt.detail) == ("timeout", "no answer within 2 s")
    begun = pids.read_text().split() if pids.exists() else []
    assert not any(running(int(one)) for one in begun)
