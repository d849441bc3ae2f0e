"""Command-line agents for the tests: `commands.py:NAME` names one."""

import sys
from dataclasses import replace
from pathlib import Path

from harness_cli_agents.agent import CommandAgent, CommandLine

TINY = str(Path(__file__).with_name("tiny.py"))
LINE = CommandLine(
    command=(sys.executable, "-S", TINY),
    variables={
        "OPENAI_BASE_URL": "$base_url",
        "OPENAI_API_KEY": "$api_key",
        "OPENAI_MODEL": "$model",
    },
    files={
        "mcp.json": "$mcp_servers",
        "settings.json": '{"sampling": $sampling, "max_turns": $max_turns}',
    },
)


def python(code: str, **changes: str) -> CommandLine:
    return CommandLine((sys.executable, "-S", "-c", code.replace("$", "$$")), **changes)


class Tiny(CommandAgent):
    program = "tool_loop"
    line = LINE


class Repeats(CommandAgent):
    """Run the small agent again and again until it succeeds."""

    program = "tool_loop"
    line = replace(
        LINE,
        command=("sh", "-c", f"until {sys.executable} -S {TINY} < prompt; do sleep 0.1; done"),
        files={**LINE.files, "prompt": "$prompt"},
    )


class ToFile(CommandAgent):
    program = "tool_loop"
    line = replace(LINE, command=(*LINE.command, "out/answer.txt"), answer="file:out/answer.txt")
    line = replace(line, files={**LINE.files, "out/.keep": ""})


class LastReply(CommandAgent):
    program = "tool_loop"
    line = replace(LINE, answer="reply")


class Json(CommandAgent):
    program = "tool_loop"
    line = python('print(\'{"result": " 42 "}\')', answer="output:result")


class BadJson(CommandAgent):
    program = "tool_loop"
    line = python("print('{}')", answer="output:result")


class NoFile(CommandAgent):
    program = "tool_loop"
    line = python("pass", answer="file:answer.txt")


class Fails(CommandAgent):
    program = "tool_loop"
    line = python("import sys; sys.exit('out of paper')")


class WithoutTools(CommandAgent):
    program = "tool_loop"
    line = replace(python("print(42)"), files={"mcp.json": "$mcp_servers"})


class TooMuch(CommandAgent):
    program = "tool_loop"
    line = python("print('x' * (5 << 20))")


class Environment(CommandAgent):
    program = "tool_loop"
    line = python("import json, os; print(json.dumps([os.getcwd(), dict(os.environ)]))")


class Hangs(CommandAgent):
    """Start a child in a session of its own, name both processes in a file, and wait."""

    program = "tool_loop"
    line = python(
        "import os, subprocess, sys, time\n"
        "wait = 'import time; time.sleep(600)'\n"
        "child = subprocess.Popen([sys.executable, '-c', wait], start_new_session=True)\n"
        "with open(os.environ['PIDS'] + '.new', 'w') as file:\n"
        "    file.write(f'{os.getpid()} {child.pid}')\n"
        "os.rename(os.environ['PIDS'] + '.new', os.environ['PIDS'])\n"
        "time.sleep(600)\n"
    )


class NotThere(CommandAgent):
    program = "tool_loop"
    line = CommandLine(("no-such-agent",), install="npm install -g no-such-agent")


class Unknown(CommandAgent):
    program = "tool_loop"
    line = CommandLine((sys.executable, "$question"))
