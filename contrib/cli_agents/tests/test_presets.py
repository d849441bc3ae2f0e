"""Command-line agents of others, where they are installed: `npm install --prefix FOLDER PACKAGE`, its `.bin` on PATH."""

import asyncio
import copy
import shutil
from dataclasses import replace

import pytest

from harness.contracts.programs import CANARY
from harness.gateway.server import GatewayServer
from harness.plugins import agent_spec, load, program
from harness.testing.stage import staged
from harness_cli_agents import PRESETS

TIMEOUT_S = 120.0


def installed(*names):
    """Return parameters of presets, each skipped where its command is not on PATH."""
    found = []
    for name in names:
        command = PRESETS[name][0]
        missing = shutil.which(command) is None
        skip = pytest.mark.skipif(missing, reason=f"needs the command {command!r} on PATH")
        found.append(pytest.param(name, marks=skip))
    return found


@pytest.fixture(scope="module")
def gateway():
    with GatewayServer() as server:
        yield server


def played(name, gateway, folder, scenario):
    """Return an agent's attempt at a scenario, the tools called by the names that the agent gives them; and requests."""
    scene = next(one for one in program("tool_loop").scenarios if one.name == scenario)
    scripted = program("tool_loop").script(scene)

    def script(request):
        reply = scripted(request)
        offered = [tool["function"]["name"] for tool in request.body.get("tools") or ()]
        calls = copy.deepcopy(reply.tool_calls)
        for call in calls or ():
            own = call["function"]["name"]
            call["function"]["name"] = next((one for one in offered if one.endswith(own)), own)
        return replace(reply, tool_calls=calls)

    async def play():
        agent = load(agent_spec(name))()
        async with staged("tool_loop", scene, gateway, folder, script) as stage:
            request = stage.request(timeout_s=TIMEOUT_S)
            attempt = await stage.attempt(agent, f"{folder.name}", request)
            return attempt, [call.raw for call in stage.tap.calls]

    return asyncio.run(play())


@pytest.mark.parametrize("name", installed("codex", "claude_code", "qwen_code"))
def test_a_question_is_answered_with_the_environments_tool(name, gateway, tmp_path):
    attempt, sent = played(name, gateway, tmp_path, "one_call")
    assert (attempt.outcome, attempt.answer) == ("ok", "There are 3 singers."), attempt.detail
    assert [(one.tool, one.ok) for one in attempt.tool_calls] == [("query_database", True)]
    assert len(sent) == len(attempt.transitions) == 2
    assert not any(CANARY.encode() in raw for raw in sent)
    own = ("shell", "exec_command", "run_shell_command", "read_file", "Bash", "Read")
    assert not set(own) & set(attempt.transitions[0].offered_tools)


@pytest.mark.parametrize("name", installed("codex", "claude_code", "qwen_code"))
@pytest.mark.parametrize(
    ("scenario", "outcome"), [("server_error", "endpoint_error"), ("refused", "agent_error")]
)
def test_a_failed_call_ends_the_attempt(name, scenario, outcome, gateway, tmp_path):
    attempt, _ = played(name, gateway, tmp_path, scenario)
    assert (attempt.outcome, len(attempt.failures)) == (outcome, 1), attempt.detail
