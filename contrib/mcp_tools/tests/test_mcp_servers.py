"""Real servers that do all that a server should not: whatever it is, it is typed, bounded, and no attempt's failure."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

import sessions
from harness.errors import ConfigError, EnvironmentFault, TaskSetError
from harness.records import JSON, Task
from harness.rollout import tools
from harness.testing.data_contract import TaskSetContract
from harness.testing.environment_contract import EnvironmentContract
from harness_mcp_tools import connection
from harness_mcp_tools.environment import McpEnvironment, McpSession
from harness_mcp_tools.tasks import McpTasks
from sessions import played

SERVER = Path(__file__).with_name("mcp_server.py")
KEY = "sk-a-key-that-nobody-may-see"
Server = Mapping[str, Any]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> McpEnvironment:
    environment = McpEnvironment()
    monkeypatch.setattr(tools, "environment", lambda name: environment)
    return environment


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.jsonl"
    rows = [
        {"question": f"What about {split}?", "answer": "The whole answer", "split": split}
        for split in SPLITS
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


SPLITS = ("train", "val", "test")


def stdio(**more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(SERVER)], **more}


@asynccontextmanager
async def served(
    *arguments: str, **variables: str
) -> AsyncIterator[tuple[dict[str, Any], subprocess.Popen[str]]]:
    """A server over HTTP."""
    command = [sys.executable, str(SERVER), "http", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | variables
    ) as process:
        try:
            assert process.stdout is not None
            port = await asyncio.to_thread(process.stdout.readline)
            yield {"url": f"http://127.0.0.1:{port.strip()}/mcp"}, process
        finally:
            process.kill()


def task_of(server: Server, questions: Path) -> Task:
    return McpTasks(servers={"odd": server}, path=questions).load("val")[0]


toolbox = partial(sessions.toolbox, name="mcp", program="tool_loop", timeout_s=2.0)


def odd(how: str) -> tuple[str, dict[str, JSON]]:
    return "misbehave", {"how": how}


ECHO = ("echo", {"text": "ü 金额"})


@pytest.mark.slow
def test_one_process_serves_all_attempts_and_ends_with_the_loop(
    made: McpEnvironment, questions: Path
) -> None:
    task = task_of(stdio(), questions)

    async def play() -> list[psutil.Process]:
        boxes = [toolbox(made, task) for _ in range(8)]
        for calls in await asyncio.gather(*(played(box, ECHO, ECHO) for box in boxes)):
            assert [call.text for call in calls] == ["ü 金额"] * 2 and all(
                call.ok for call in calls
            )
        assert not any(box.fault or box.state for box in boxes)
        return servers()

    running = asyncio.run(play())
    assert len(running) == 1
    assert not psutil.wait_procs(running, timeout=20)[1]


def servers() -> list[psutil.Process]:
    """Those that this process has started; what is ending meanwhile, or has ended unread, has no command line."""
    found = psutil.process_iter(["ppid", "cmdline"])
    return [
        one
        for one in found
        if one.info["ppid"] == os.getpid() and str(SERVER) in (one.info["cmdline"] or ())
    ]


SAID = {
    "refuse": (False, "Error executing tool misbehave: I would rather not.", ""),
    "image": (True, "[image, image/png, 7 bytes]\nand words", ""),
    "print": (True, "print", ""),
    "key": (True, "my key is [ODD_KEY]", ""),
}
"""Whether a call went well, what is shown of it, and its fault, by what the tool does."""


@pytest.mark.slow
def test_what_a_tool_says_is_shown(
    made: McpEnvironment, questions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODD_KEY", KEY)
    task = task_of(stdio(env=["ODD_KEY"]), questions)
    box = toolbox(made, task)
    calls = asyncio.run(played(box, *(call for how in SAID for call in (odd(how), ECHO))))
    assert [(call.ok, call.text, call.fault) for call in calls[::2]] == list(SAID.values())
    assert [call.ok for call in calls[1::2]] == [True] * len(SAID) and not box.fault
    texts = [call.text for call in calls]
    assert KEY not in json.dumps(
        [
            box.request.dump(),
            str(task),
            texts,
            dict(McpTasks({"odd": stdio()}, questions).describe()),
        ]
    )


@pytest.mark.slow
def test_a_server_that_dies_amid_a_call_is_no_failure_of_the_agent_and_is_started_anew(
    made: McpEnvironment, questions: Path
) -> None:
    task = task_of(stdio(), questions)

    async def play() -> None:
        first, parallel, later = (toolbox(made, task, timeout_s=20.0) for _ in range(3))
        slow = asyncio.ensure_future(played(parallel, odd("slow")))
        while parallel._session is None:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        began = time.monotonic()
        assert not await played(first, odd("die"), ECHO)
        assert time.monotonic() - began < 15
        assert (
            first.fault
            == "environment 'mcp': server 'odd': Connection closed (last stderr line: out of paper)"
        )
        await slow
        assert parallel.fault, "the waiting call gets no answer either"
        assert [call.ok for call in await played(later, ECHO)] == [True]

    asyncio.run(play())


@pytest.mark.slow
def test_a_server_that_is_killed_between_calls_is_started_anew_where_attempts_share_it(
    made: McpEnvironment, questions: Path
) -> None:
    task = task_of(stdio(), questions)

    async def play() -> None:
        box = toolbox(made, task, timeout_s=20.0)
        await box.open("killed")
        await box.call(*ECHO)
        (process,) = servers()
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.wait)
        assert isinstance(box._session, McpSession)
        while not box._session._checked["odd"].gone:
            await asyncio.sleep(0.01)
        await box.call(*ECHO)
        await box.close()
        assert [call.ok for call in box.tool_calls] == [True, True] and not box.fault

    asyncio.run(play())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "fault"), [("slow", ""), ("hang", "it did not answer a ping within 1.5 s")]
)
def test_a_tool_that_is_late_is_told_from_a_server_that_hangs(
    made: McpEnvironment, questions: Path, how: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fault:
        monkeypatch.setattr(connection, "PING_S", 8.0)  # however busy the machine
    task = task_of(stdio(), questions)
    box, later = toolbox(made, task, timeout_s=1.0), toolbox(made, task, timeout_s=10.0)

    async def play() -> None:
        began = time.monotonic()
        await played(box, odd(how))
        assert time.monotonic() - began < 30
        assert [call.ok for call in await played(later, ECHO)] == [True]

    asyncio.run(play())
    assert fault in box.fault and bool(box.fault) == bool(fault)
    assert fault or [call.fault for call in box.tool_calls] == ["timeout"]


@pytest.mark.slow
def test_a_hanging_server_that_outlasts_the_attempt_is_found_when_the_session_closes(
    made: McpEnvironment, questions: Path
) -> None:
    box = toolbox(made, task_of(stdio(), questions), timeout_s=30.0)

    async def play() -> None:
        await box.open("late")
        call = asyncio.ensure_future(box.call(*odd("hang")))
        await asyncio.sleep(0.5)
        call.cancel()
        await asyncio.wait({call})
        await box.close()

    asyncio.run(play())
    assert "did not answer a ping" in box.fault


@pytest.mark.slow
def test_50_mib_are_an_observation_and_are_not_held(made: McpEnvironment, questions: Path) -> None:
    box = toolbox(made, task_of(stdio(), questions), timeout_s=30.0)
    tracemalloc.start()
    calls = asyncio.run(played(box, odd("big"), ECHO))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (
        [call.ok for call in calls] == [False, True]
        and "more than 4 MiB" in calls[0].text
        and not box.fault
    )
    assert peak < 30 << 20


async def test_a_session_of_its_own_over_http_with_a_key_in_a_header(
    made: McpEnvironment, questions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    async with served(ODD_KEY=KEY) as (server, _):
        task = await asyncio.to_thread(
            task_of, {**server, "headers": {"x-key": "MY_KEY"}}, questions
        )
        box = toolbox(made, task)
        calls = await played(box, ECHO, odd("key"), odd("image"))
        assert [call.text for call in calls] == [
            "ü 金额",
            "my key is [MY_KEY]",
            "[image, image/png, 7 bytes]\nand words",
        ]
        assert KEY not in json.dumps(box.request.dump())
        with pytest.raises(TaskSetError, match="401"):
            await asyncio.to_thread(task_of, server, questions)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json_response", "sse"])
async def test_faults_over_http(made: McpEnvironment, questions: Path, form: str) -> None:
    async with served(form) as (server, process):
        task = await asyncio.to_thread(task_of, server, questions)
        big, forgotten, killed, gone = (
            toolbox(made, task, timeout_s=limit_s) for limit_s in (60.0, 3.0, 3.0, 3.0)
        )
        calls = await played(big, odd("big"), ECHO)
        assert (
            [call.ok for call in calls] == [False, True]
            and "more than 4 MiB" in calls[0].text
            and not big.fault
        )
        await forgotten.open("forgotten")
        await played(toolbox(made, task), odd("forget sessions"))
        with pytest.raises(EnvironmentFault):
            await forgotten.call(*ECHO)
        await forgotten.close()
        assert "Session terminated" in forgotten.fault
        await killed.open("killed")
        call = asyncio.ensure_future(killed.call(*odd("slow")))
        await asyncio.sleep(0.3)
        process.kill()
        with pytest.raises(EnvironmentFault):
            await call
        await killed.close()
        assert killed.fault
        began = time.monotonic()
        await played(gone, ECHO)
        assert "environment 'mcp': server 'odd'" in gone.fault and time.monotonic() - began < 20


async def test_other_tools_than_the_task_was_loaded_with_are_refused_by_name(
    made: McpEnvironment, questions: Path
) -> None:
    async with served() as (server, _):
        tasks = McpTasks(servers={"odd": server}, path=questions)
        task = (await asyncio.to_thread(tasks.load, "val"))[0]
        assert await asyncio.to_thread(tasks.check) == []
        await played(toolbox(made, task), odd("more tools"))
        more, fewer = toolbox(made, task), toolbox(made, task)
        assert [call.ok for call in await played(more, ECHO)] == [True], (
            "what is not promised is not offered"
        )
        await played(toolbox(made, task), odd("fewer tools"))
        await played(fewer, ECHO)
        assert fewer.fault == (
            "environment 'mcp': server 'odd': tool 'recall' is not offered any more. Load the tasks again"
        )
        assert await asyncio.to_thread(tasks.check) == ["the tools of server 'odd'"]


class TestContract(EnvironmentContract):
    """Of a server with a process for each attempt, which keeps state in it."""

    environment = "mcp"
    calls = (("echo", {"text": "a"}), ("recall", {}))
    changing = ("remember", {"text": "b"})

    @pytest.fixture(scope="class")
    @classmethod
    def tasks(cls, tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
        file = tmp_path_factory.mktemp("mcp") / "questions.jsonl"
        file.write_text(json.dumps({"question": "?", "answer": "The whole answer", "split": "val"}))
        server = stdio(per_attempt=True, state="state://kept", tools=["echo", "recall", "remember"])
        tasks = McpTasks(servers={"odd": server}, path=file).load("val")
        cls.calls = (*cls.calls[:2], ("remember", {"text": "c"}))
        return list(tasks)


class TestTasks(TaskSetContract):
    task_set = "mcp"

    @pytest.fixture(scope="class")
    @classmethod
    def options(cls, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
        file = tmp_path_factory.mktemp("mcp") / "questions.csv"
        file.write_text(
            "question,answer,split,mcp,context\nWho?,Somebody quite unknown,train,odd,told\n"
            "What?,Something,val,,\nWhere?,There,test,,\n"
        )
        return {"servers": {"odd": stdio()}, "path": str(file)}


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({}, "give either `command` or `url`"),
        ({"command": "x", "url": "http://x"}, "give either `command` or `url`"),
        ({"url": f"http://user:{KEY}@x"}, "without user and password"),
        (
            {"url": "http://x", "headers": {"Authorization": f"Bearer {KEY}"}},
            "names of environment variables",
        ),
        (
            {"command": "x", "env": ["NO_SUCH_VARIABLE"]},
            r"odd.env\[0\] names an environment variable that is not set",
        ),
        ({"command": "x", "state": "state://kept"}, "needs `per_attempt: true`"),
        ({"command": "x", "enw": []}, "enw: Extra inputs are not permitted"),
    ],
)
def test_a_server_that_is_described_wrongly_is_refused_without_repeating_a_key(
    server: Server, message: str, questions: Path
) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        McpTasks(servers={"odd": server}, path=questions)
    assert KEY not in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({"command": "no_such_program"}, "No such file or directory"),
        (
            {"command": sys.executable, "args": ["-c", "raise SystemExit('no licence')"]},
            "last stderr line: no licence",
        ),
        (stdio(tools=["echo", "nothing"]), "it has no tool 'nothing'"),
        ({"url": "http://127.0.0.1:9/mcp"}, "ConnectError"),
    ],
)
def test_tasks_do_not_load_without_their_tools(
    server: Server, message: str, questions: Path
) -> None:
    with pytest.raises(TaskSetError, match=message):
        task_of(server, questions)


@pytest.mark.slow
def test_two_servers_with_a_tool_of_one_name_are_refused(questions: Path) -> None:
    with pytest.raises(TaskSetError, match="both have a tool 'echo'"):
        McpTasks(servers={"one": stdio(), "two": stdio()}, path=questions).load("val")


@pytest.mark.slow
def test_a_server_of_others_is_used_as_it_is(made: McpEnvironment, questions: Path) -> None:
    pytest.importorskip("mcp_server_time", reason="mcp-server-time is of the group dev")
    task = task_of({"command": sys.executable, "args": ["-m", "mcp_server_time"]}, questions)
    asked = {"source_timezone": "Europe/Berlin", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    calls = asyncio.run(
        played(
            toolbox(made, task, timeout_s=20.0),
            ("convert_time", asked),
            ("get_current_time", {"timezone": "x"}),
        )
    )
    assert calls[0].ok and "Asia/Tokyo" in calls[0].text and not calls[1].ok, calls
