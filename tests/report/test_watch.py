"""`harness watch`: run folders that grow, end, are resumed, killed or removed while a page of them is read."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from harness.runs.folder import RowLog, RunFolder
from harness.runs.tables import conclude
from harness_watch import view as viewing
from harness_watch.server import application
from harness_watch.text import lines
from harness_watch.view import View

EVIL = "</script><img src=x onerror=alert(1)>"


class Growing:
    """A run under way, written as runs write: the rows of a finished one, as many as asked for."""

    def __init__(self, source: RunFolder, root: Path) -> None:
        self.folder = RunFolder(root / source.path.name)
        self.folder.logs.mkdir(parents=True)
        self.rows = {kind: list(source.rows(kind)) for kind in ("episodes", "transitions", "steps")}  # type: ignore[call-overload]
        self.ended = source.read()
        started = {
            key: value
            for key, value in self.ended["launches"][0].items()
            if key in ("started", "commit")
        }
        self.folder.write(
            {**self.ended, "status": "running", "result": None, "launches": [started]}
        )  # type: ignore[typeddict-item]
        self.logs = {kind: RowLog(self.folder, kind) for kind in self.rows}
        self.lock = (self.folder.path / ".lock").open("w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)

    def until(self, step: int, phase: str = "val", part: float = 1.0) -> None:
        """Write what happens up to the end of a phase of a step, or of its last episodes a part."""
        for kind, rows in self.rows.items():
            due = [
                row
                for row in rows
                if row["step"] < step or (row["step"] == step and self._before(row, phase))
            ]
            if kind != "steps":
                last = [row for row in due if row["step"] == step and row["phase"] == phase]
                due = [row for row in due if row not in last] + last[: int(part * len(last))]
            self.logs[kind].add(due)
            self.rows[kind] = [row for row in rows if row not in due]

    @staticmethod
    def _before(row: dict[str, Any], phase: str) -> bool:
        return phase == "val" or row.get("phase") == "train"

    def kill(self) -> None:
        self.lock.close()

    def finish(self) -> None:
        self.until(99)
        conclude(self.folder, self.ended)
        self.kill()


@pytest.fixture
def growing(tmp_path: Path, write_run: Callable[..., Any]) -> Growing:
    """At its beginning; of 4 steps, of 8 rollouts each, validated every second on 60 questions."""
    return Growing(write_run(tmp_path / "source", "reference_sql"), tmp_path / "runs")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewing, "EVERY_S", 0.0)


@contextmanager
def served(*arguments: str | Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The real command, and where it answers."""
    command = [sys.executable, "-m", "harness", "watch", *map(str, arguments)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        line = process.stdout.readline()
        assert "http://127.0.0.1:" in line, line + process.stderr.read()
        yield line[line.index("http://") :].split()[0], process
    finally:
        process.kill()
        process.communicate()


def cards(view: View, at: str = ".") -> dict[str, tuple[str, list[str]]]:
    return {
        card["label"]: (card["value"], card["more"]) for card in view.look(at).found["headline"]
    }


def charts(view: View) -> dict[str, Any]:
    return {chart["id"]: chart for chart in view.look(".").found["charts"]}


@pytest.mark.slow
def test_events_follow_rows_and_ctrl_c_ends_it_quietly(growing: Growing) -> None:
    growing.until(0, part=0.5)
    with (
        served(growing.folder.path) as (address, process),
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        page = client.get("/")
        assert page.status_code == 200 and "nonce-" in page.headers["content-security-policy"]
        assert client.get("/", headers={"host": "elsewhere.example"}).status_code == 400
        assert client.get("/events", params={"at": "../source"}).status_code == 404
        with client.stream("GET", "/events") as stream:
            news = (
                json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: ")
            )
            first = next(news)
            assert len(first["episodes"]) == 30 and "so far (30 of 60)" in first["blocks"]["result"]
            growing.until(1, "train")
            second = next(news)
            while len(second["episodes"]) < 38:
                more = next(news)
                second = {**more, "episodes": more["episodes"] + second["episodes"]}
            assert {one["id"] for one in second["episodes"]}.isdisjoint(
                one["id"] for one in first["episodes"]
            )
            one = next(one for one in second["episodes"] if one["phase"] == "train")
            asked = {"run": one["run"], "id": one["id"]}
            calls = client.get("/calls", params=asked).json()
            assert next(call["role"] for call in calls["steps"] if "role" in call) == "write_query"
            assert any("Schema: t(a)" in text for text in calls["texts"])
            assert calls["gold"] == ""  # while agents run, nobody is told
            assert client.get("/calls", params=asked | {"id": "none"}).status_code == 404
            growing.finish()
            assert client.get("/calls", params=asked).json()["steps"] == calls["steps"]
            while "finished, step 4 of 4" not in (last := next(news))["blocks"].get("head", ""):
                assert not last["reset"]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr is not None and process.stderr.read() == ""


@pytest.mark.slow
def test_a_page_says_where_a_run_stands_and_counts_whole_steps_alone(growing: Growing) -> None:
    view = View(growing.folder.path)
    growing.until(0, part=0.5)
    value, more = cards(view)["accuracy"]
    assert value.endswith(" %") and more == ["so far (30 of 60)"]
    (ring,) = charts(view)["validation"]["data"]
    assert (
        ring["x"] == [0]
        and ring["marker"]["symbol"] == "circle-open"
        and "30 of 60" in ring["hovertemplate"]
    )
    growing.until(2, "train", part=0.5)
    growing.logs["steps"].add([])
    found = charts(view)
    assert cards(view)["step"] == ("1 of 4", []) or cards(view)["step"] == ("2 of 4", [])
    for name in ("training", "signal", "lengths"):
        assert max(found[name]["data"][-1]["x"]) == 1, (
            name
        )  # of step 2 half is there: the short ones
    assert found["entropy"]["data"][0]["y"][0] == 1.0 and found["speed"]["data"][0]["y"][0] > 0
    growing.until(4)
    assert (
        cards(view)["step"] == ("4 of 4", [])
        and max(charts(view)["training"]["data"][-1]["x"]) == 4
    )
    before = view.look(".").found["browser"]["total"]
    growing.finish()
    after = view.look(".")
    assert (
        after.found["browser"]["total"] == before == 3 * 60 + 4 * 8
        and after.found["live"].state == "finished"
    )
    assert "Accuracy on validation" in after.blocks["result"] and after is view.look(".")


def test_half_a_line_waits_for_its_other_half(growing: Growing) -> None:
    view, row = View(growing.folder.path), json.dumps(growing.rows["episodes"][0])
    file = growing.folder.logs / "episodes-1-1.jsonl"
    file.write_text(row[:100])
    assert view.look(".").found["browser"]["total"] == 0
    file.write_text(row + "\n")
    assert view.look(".").found["browser"]["total"] == 1


def test_a_resumed_run_forgets_what_is_done_again(growing: Growing) -> None:
    view = View(growing.folder.path)
    growing.until(3, "train")
    era, total = view.look(".").era, view.look(".").found["browser"]["total"]
    growing.folder.drop_after(2)
    record = growing.folder.read()
    growing.folder.update(launches=[*record["launches"], *record["launches"]])
    state = view.look(".")
    assert state.found["browser"]["total"] == total - 8 and state.era > era
    assert "launch 2" in state.blocks["head"]


def test_a_killed_and_a_removed_run_are_said(
    growing: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness_watch import follow

    monkeypatch.setattr(follow, "QUIET_S", 0.0)
    view = View(growing.folder.path)
    growing.until(1)
    assert view.look(".").found["live"].state == "running"
    assert view.look(".").found["live"].state == "running"  # it is held, as the second look asks
    growing.kill()
    state = view.look(".")
    assert state.found["live"].state == "lost" and "harness train --resume" in state.blocks["head"]
    assert "killed?" in state.blocks["result"] and ">running<" not in state.blocks["result"]
    assert "killed" not in state.blocks["result"].replace("killed?", "")
    (row,) = View(growing.folder.path.parent).look(".").found["matrix"]
    assert row["state"] == "killed?"
    total = state.found["browser"]["total"]
    shutil.rmtree(growing.folder.path)
    state = view.look(".")
    assert "The folder is gone" in state.blocks["head"] and state.found["browser"]["total"] == total
    assert not growing.folder.path.exists()


def test_a_run_that_a_process_takes_up_again_is_running(
    growing: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness_watch import follow

    monkeypatch.setattr(follow, "QUIET_S", 0.0)
    view = View(growing.folder.path)
    growing.until(1)
    growing.kill()
    assert view.look(".").found["live"].state == "lost"
    with growing.folder.locked():
        state = view.look(".")
        assert state.found["live"].state == "running"
        assert "killed" not in state.blocks["result"] and "--resume" not in state.blocks["head"]


def test_a_study_with_a_killed_run_is_lost(tmp_path: Path, write_run: Callable[..., Any]) -> None:
    study = tmp_path / "small"
    killed = Growing(write_run(tmp_path / "source", "reference_sql"), study)
    killed.until(2)
    killed.kill()
    runs = (write_run(study, "reference_sql").id, killed.folder.id, None)
    jobs = []
    for arm, run in zip("abc", runs, strict=True):
        jobs.append({"key": arm, "arm": arm, "seed": 0, "run": run, "state": "planned"})
    state = {"name": "small", "question": "", "jobs": jobs, "varied": ["agent"]}
    (study / "study.json").write_text(json.dumps(state))
    live = View(study).look(".").found["live"]
    assert (live.state, live.message) == ("lost", "1 finished, 1 killed?, 1 planned")


def test_a_damaged_row_is_said_and_not_left_out(growing: Growing) -> None:
    view = View(growing.folder.path)
    growing.until(1)
    view.look(".")
    log = next(growing.folder.logs.glob("episodes-*"))
    lines = log.read_text().count("\n")
    with log.open("a") as file:
        file.write("{nonsense\n")
    for _ in range(2):
        head = view.look(".").blocks["head"]
        assert f"line {lines + 1} of {log} is damaged: it is no row" in head


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda line: line[:-3], "it is no row"),
        (lambda line: json.dumps({**json.loads(line), "phase": "test"}), "its phase is 'test'"),
        (lambda line: json.dumps({**json.loads(line), "index": "0"}), "its index is '0'"),
    ],
)
async def test_a_damaged_call_is_named_in_its_episode_alone(
    growing: Growing, damage: Callable[[str], str], message: str
) -> None:
    growing.until(0)
    view = View(growing.folder.path)
    log = next(growing.folder.logs.glob("transitions-*"))
    lines = log.read_text().splitlines()
    broken = json.loads(lines[7])["attempt_id"]
    lines[7] = damage(lines[7])
    log.write_text("\n".join([*lines, ""]))
    listed = view.look(".").found["browser"]["episodes"]
    transport = httpx.ASGITransport(application(view))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        refused = {}
        for episode in listed:
            asked = {"run": episode["run"], "id": episode["id"]}
            answer = await client.get("/calls", params=asked)
            if answer.status_code != 200:
                refused[episode["id"]] = answer.text
            else:
                assert answer.json()["steps"], asked
    assert list(refused) == [broken]
    assert f"line 8 of {log} is damaged: {message}" in refused[broken]


def test_a_call_without_some_columns_is_shown(growing: Growing) -> None:
    kept = ("step", "phase", "attempt_id", "role", "trained", "response_text")
    growing.rows["transitions"] = [
        {name: row[name] for name in kept} for row in growing.rows["transitions"]
    ]
    growing.until(0)
    view = View(growing.folder.path)
    first = view.look(".").found["browser"]["episodes"][0]
    assert view.opened(".", first["run"], first["id"])["steps"]


def test_a_damaged_table_leaves_what_was_shown(growing: Growing) -> None:
    view = View(growing.folder.path)
    growing.finish()
    total = view.look(".").found["browser"]["total"]
    (growing.folder.path / "steps.parquet").write_text("no table")
    state = view.look(".")
    assert "is damaged" in state.blocks["head"] and state.found["browser"]["total"] == total
    assert "is damaged" in View(growing.folder.path.parent).look(".").blocks["result"]


@pytest.mark.slow
def test_words_of_models_and_tasks_are_text(
    growing: Growing, browse: Callable[..., Any], tmp_path: Path
) -> None:
    from harness_report.page import page

    columns = ("question", "answer", "detail", "reward_reason", "cluster", "outcome", "task_id")
    growing.rows["episodes"] = [
        row | dict.fromkeys(columns, EVIL) for row in growing.rows["episodes"]
    ]
    growing.until(1)
    record = growing.folder.read()
    growing.folder.update(reason=EVIL, agent=EVIL, config={**record["config"], "agent": EVIL})
    state = View(growing.folder.path).look(".")
    assert state.found["browser"]["episodes"][0]["question"] == EVIL
    assert not any("<img" in html for html in state.blocks.values())
    text = page(state.found)
    assert "<img" not in text and "alert(1)>" not in text.partition('id="data"')[0].replace(
        "&gt;", ""
    )
    (tmp_path / "page.html").write_text(text.replace(' data-live="."', ""))
    shown = browse(tmp_path / "page.html", "verdict=unscored")
    assert "&lt;img" in shown.dom and "<img" not in shown.dom


def test_a_study_has_a_matrix_of_its_runs(tmp_path: Path, write_run: Callable[..., Any]) -> None:
    study = tmp_path / "runs" / "small"
    ended = write_run(study, "reference_sql")
    under_way = Growing(write_run(tmp_path / "source", "langgraph_sql"), study)
    under_way.until(2)
    kinds = (
        ("plain", ended.id, "finished"),
        ("graph", under_way.folder.id, "running"),
        ("later", None, "planned"),
    )
    jobs = [
        {"key": arm, "arm": arm, "seed": 0, "run": run, "state": state} for arm, run, state in kinds
    ]
    (study / "study.json").write_text(
        json.dumps({"name": "small", "question": EVIL, "jobs": jobs, "varied": ["agent"]})
    )
    view = View(tmp_path / "runs")
    found = view.look("small")
    rows = {row["arm"]: row for row in found.found["matrix"]}
    assert [rows[arm]["state"] for arm in ("plain", "graph", "later")] == [
        "finished",
        "running",
        "planned",
    ]
    assert (
        rows["plain"]["step"] == "4 of 4"
        and rows["graph"]["step"] == "2 of 4"
        and rows["graph"]["reward"]
    )
    assert rows["plain"]["accuracy"].endswith("%") and rows["later"]["step"] == ""
    assert (
        f'href="?at=small/{under_way.folder.id}"' in found.blocks["result"]
        and "<img" not in found.blocks["head"]
    )
    assert {trace["name"] for trace in found.found["charts"][0]["data"]} == {"plain", "graph"}
    assert any(
        line.startswith("graph: seed 0, state running, step 2 of 4") for line in lines(found.found)
    )
    waiting = study.with_name("waiting")
    waiting.mkdir()
    (waiting / "study.json").write_text(json.dumps({"name": "waiting", "jobs": jobs[2:]}))
    assert [row["state"] for row in view.look("waiting").found["matrix"]] == ["planned"]
    shutil.rmtree(waiting)
    listed = {row["run"]: row["state"] for row in view.look(".").found["matrix"]}
    assert listed == {"small": "1 finished, 1 running, 1 planned"}
    assert view.look(f"small/{under_way.folder.id}").found["live"].up == "small"


@pytest.mark.slow
@pytest.mark.parametrize("place", ["..", "/etc", "nothing", "a/../..", ""])
def test_no_place_is_outside(runs: Path, place: str) -> None:
    with pytest.raises(LookupError):
        View(runs).look(place)


def test_all_spellings_of_a_place_share_one_state(growing: Growing) -> None:
    growing.until(0)
    name = growing.folder.id
    view = View(growing.folder.path.parent)
    state = view.look(name)
    for spelling in (f"./{name}", f"{name}/", f"{name}/.", f".//{name}//.", f"././{name}"):
        assert view.look(spelling) is state and state.found["live"].at == name
    assert len(view._known) == 1


def test_the_states_that_are_kept_are_bounded(
    tmp_path: Path, growing: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing.until(0)
    monkeypatch.setattr(viewing, "MOST_PLACES", 2)
    root = growing.folder.path.parent
    names = [growing.folder.id]
    for number in range(3):
        names.append(f"copy-{number}")
        shutil.copytree(growing.folder.path, root / names[-1])
    view = View(root)
    for name in names:
        assert view.look(name).found["live"].at == name
    assert set(view._known) == set(view._looked) == set(names[-2:])
    assert view.look(names[0]).found["live"].at == names[0]


@pytest.mark.parametrize("place", ["x" * 300, "x" * 5000, "/".join(["x"] * 2000), "a\0b"])
def test_a_place_whose_name_is_too_long_is_not_there(tmp_path: Path, place: str) -> None:
    with pytest.raises((LookupError, ValueError)):
        View(tmp_path).look(place)


@pytest.mark.slow
def test_open_event_streams_do_not_lock_a_new_page_out(growing: Growing) -> None:
    growing.until(0)
    with served(growing.folder.path) as (address, _), ExitStack() as opened:
        port = int(address.rstrip("/").rpartition(":")[2])
        for _ in range(256):
            stream = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            stream.sendall(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n")
        answer = None
        for _ in range(60):  # those that are too many end at their next look at the files
            with suppress(httpx.TransportError):
                answer = httpx.get(address, timeout=60)
                break
            time.sleep(0.5)
        assert answer is not None and answer.status_code == 200
        assert httpx.get(address, params={"at": "x" * 5000}, timeout=60).status_code == 404


def test_a_folder_is_a_list_to_choose_from(runs: Path) -> None:
    state = View(runs).look(".")
    assert len(state.found["matrix"]) == 5 and sorted(state.found["live"].message.split(", ")) == [
        "1 failed",
        "4 finished",
    ]
    for row in state.found["matrix"]:
        assert f'href="?at={row["folder"]}"' in state.blocks["result"]


def test_the_newest_run_is_shown_as_text_and_ends_with_it(
    growing: Growing, command: Callable[..., Any]
) -> None:
    growing.finish()
    done = command("watch", "--text", "--runs-dir", growing.folder.path.parent)
    assert done.returncode == 0, done.stderr
    first, *_ = done.stdout.splitlines()
    assert first.startswith(f"{growing.folder.id}: finished, step 4 of 4, accuracy ")
    assert len(set(done.stdout.splitlines())) == len(done.stdout.splitlines())


@pytest.mark.slow
def test_a_first_run_is_waited_for(growing: Growing, tmp_path: Path) -> None:
    below = tmp_path / "later"
    watching = [sys.executable, "-m", "harness", "watch", "--text", "--runs-dir", str(below)]
    with subprocess.Popen(watching, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("waiting for the first run below ")
        growing.finish()
        shutil.copytree(growing.folder.path.parent, below)
        assert process.stdout.readline().startswith(f"{growing.folder.id}: finished")


@pytest.mark.slow
def test_why_a_run_failed_is_said(growing: Growing) -> None:
    growing.finish()
    file = growing.folder.path / "run.json"
    record = json.loads(file.read_text())
    record["status"], record["launches"][-1]["reason"] = "failed", "the disk is full"
    file.write_text(json.dumps(record))
    assert View(growing.folder.path).look(".").found["live"].message.endswith(": the disk is full")


def test_what_is_not_there_is_said_in_one_line(tmp_path: Path, command: Callable[..., Any]) -> None:
    for arguments in (["nothing"], [tmp_path]):
        done = command("watch", *arguments)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
        assert done.stderr.startswith("harness: ")


def test_an_episode_of_a_published_copy_opens_too() -> None:
    copy = next(
        (Path(__file__).parents[2] / "results" / "studies" / "frameworks").glob("*/run.json")
    ).parent
    view = View(copy)
    listed = view.look(".").found["browser"]["episodes"]
    assert len(listed) == 200 and all(
        one["id"].isdecimal() for one in listed
    )  # which name no attempts
    opened = [view.opened(".", one["run"], one["id"]) for one in listed[:20]]
    assert any(step["tool"] for one in opened for step in one["steps"]) and any(
        one["gold"] for one in opened
    )


@pytest.mark.slow
def test_a_page_that_is_quiet_is_not_built_again(growing: Growing) -> None:
    view = View(growing.folder.path)
    growing.until(2)
    states = [view.look(".") for _ in range(3)]
    assert states[0] is states[1] is states[2]
    time.sleep(0.01)
    growing.until(3)
    assert view.look(".") is not states[0]


@asynccontextmanager
async def tab(address: str, folder: Path) -> AsyncIterator[Callable[[str], Awaitable[Any]]]:
    """A page in headless Chromium at a phone's width; gives what evaluates an expression in it."""
    named = (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    binary = next((path for name in named if name and (path := shutil.which(name))), None)
    if binary is None:
        pytest.skip("no Chromium here: install chromium, or name one in CHROMIUM")
    options = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--remote-debugging-port=0",
        "--window-size=500,900",
    )
    command = [binary, *options, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        async with asyncio.timeout(60):
            while (
                not (port_file := folder / "DevToolsActivePort").exists()
                or "\n" not in port_file.read_text()
            ):
                if process.poll() is not None:
                    pytest.skip("this Chromium does not start headless")
                await asyncio.sleep(0.1)
        port = port_file.read_text().split()[0]
        async with aiohttp.ClientSession() as session:
            async with session.put(f"http://127.0.0.1:{port}/json/new?{address}") as answer:
                place = json.loads(await answer.text())["webSocketDebuggerUrl"]
            async with session.ws_connect(place, max_msg_size=0) as socket:

                async def evaluate(expression: str) -> Any:
                    asked = {"expression": expression, "returnByValue": True, "awaitPromise": True}
                    await socket.send_json({"id": 1, "method": "Runtime.evaluate", "params": asked})
                    while (answer := await socket.receive_json()).get("id") != 1:
                        pass
                    return answer["result"]["result"].get("value")

                yield evaluate
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
async def test_an_open_episode_stays_where_it_is_while_others_end(
    growing: Growing, tmp_path: Path
) -> None:
    growing.rows["episodes"] = [row | {"question": EVIL} for row in growing.rows["episodes"]]
    growing.until(0)

    async def until(expression: str) -> None:
        async with asyncio.timeout(60):
            while not await evaluate(expression):
                await asyncio.sleep(0.1)

    with served(growing.folder.path) as (address, process):
        async with tab(address, tmp_path / "profile") as evaluate:
            await until(
                "document.querySelectorAll('#list details').length === 6 && document.body.dataset.charts > 3"
            )
            await evaluate(
                "mine = document.querySelectorAll('#list details')[3]; mine.open = true; mine.scrollIntoView()"
            )
            await until("mine.querySelectorAll('.call').length >= 3")
            top = await evaluate("mine.getBoundingClientRect().top")
            growing.until(2, "train")
            await until(
                "document.querySelector('[data-block=head]').textContent.includes('step 1 of 4')"
            )
            await until("!document.getElementById('fresh').hidden")
            assert await evaluate("mine.open && mine.isConnected")
            assert abs(await evaluate("mine.getBoundingClientRect().top") - top) < 2
            await evaluate("document.getElementById('fresh').click()")
            assert await evaluate(
                "mine.open && mine.isConnected && document.getElementById('fresh').hidden"
            )
            assert "train step 2" in await evaluate(
                "document.querySelector('#list details').textContent"
            )
            assert await evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert await evaluate("document.images.length") == 0 and EVIL in await evaluate(
                "mine.textContent"
            )
            process.kill()
            await until("'cut' in document.body.dataset")
            closed = "[...document.querySelectorAll('#list > details')].find((one) => !one.open)"
            await evaluate(f"other = {closed}; other.open = true")
            await until("other.textContent.includes('The server of this page does not answer.')")
