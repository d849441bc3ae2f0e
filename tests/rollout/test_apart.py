"""Store, trainer and runners apart, started in any order, each killed once: rewards are as if undisturbed."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from harness.results.folder import RunFolder
from harness.scripted.server import ReceivedRequest, Reply, ScriptedServer
from harness.testing.fixtures import StartServer

pytestmark = pytest.mark.timeout(580)

TASKS = 24
EVALUATION = (
    *("eval", "--agent", "reference_sql", "--limit", str(TASKS), "--json"),
    *("--set", "rollout.concurrency=4", "--set", "max_turns=2", "--set", "rollout.retries=1"),
)


class Sides:
    """Processes of `harness` that a test starts, all with one key file; none is left after it."""

    def __init__(self, folder: Path, server: ScriptedServer) -> None:
        self.folder, self.server = folder, server
        self.key_file = folder / "cache" / "store.key"
        self.store_log = folder / "store.log"
        with socket.socket() as free:  # the store comes back at its address, and others are told it before
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        self._all: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str | Path, log: str) -> subprocess.Popen[str]:
        """With its output in a file."""
        variables = os.environ | {
            "HARNESS_CACHE_DIR": str(self.key_file.parent),
            "HARNESS_TEST_SIDES": str(self.folder),
        }
        with (self.folder / log).open("ab") as output, (self.folder / f"{log}.err").open("ab") as errors:
            command = [sys.executable, "-m", "harness", *map(str, arguments)]
            process = subprocess.Popen(command, stdout=output, stderr=errors, text=True, env=variables, cwd=self.folder)
        self._all.append(process)
        return process

    def store(self) -> subprocess.Popen[str]:
        return self.start("store", "--port", self.url.rpartition(":")[2], log="store.log")

    def evaluation(
        self, *more: str | Path, runners: int = 0, log: str = "eval", apart: bool = True
    ) -> subprocess.Popen[str]:
        asked = (
            "--endpoint",
            self.server.base_url,
            "--set",
            f"rollout.runners={runners}",
            "--runs-dir",
            self.folder / "runs",
        )
        return self.start(*EVALUATION, *asked, *(("--store", self.url) if apart else ()), *more, log=log)

    def runner(self, *more: str, log: str = "runner") -> subprocess.Popen[str]:
        return self.start("runner", "--store", self.url, "--wait", "300", *more, log=log)

    def said(self, log: str) -> str:
        return "".join(file.read_text() for file in (self.folder / log, self.folder / f"{log}.err"))

    def record(self, log: str = "eval") -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self.folder / log).read_text())
        return record

    def rows(self, log: str = "eval") -> dict[tuple[str, int], tuple[Any, ...]]:
        """What counts of each rollout of an evaluation, by task and session."""
        folder = RunFolder.open(self.folder / "runs" / self.record(log)["id"])
        found = [
            (
                (row["task_id"], row["session"]),
                tuple(row[name] for name in ("outcome", "reward", "answer", "seed") if name in row),
            )
            for row in folder.rows("episodes")
        ]
        assert len(found) == len(dict(found)), "a rollout has several rows"
        return dict(found)

    def end(self) -> None:
        """End what is left, and see that nothing else is."""
        for process in self._all:
            if process.poll() is None:
                process.terminate()
        for process in self._all:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        wait_for(lambda: not self.left(), 30)

    def left(self) -> list[psutil.Process]:
        """Processes that any of ours started."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("HARNESS_TEST_SIDES") == str(self.folder):
                    found.append(process)
            except psutil.Error:
                continue
        return [one for one in found if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def wait_for(condition: Callable[[], Any], limit_s: float = 120) -> Any:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not in {limit_s} s")


def seeded(request: ReceivedRequest) -> Reply | str:
    """What a policy says that is right now and then: its words follow from question and seed alone."""
    time.sleep(0.15)
    question = str(re.findall(r"Question: (.*)", str(request.messages[-1]["content"])))
    if "You check" in str(request.messages[0]["content"]):
        return "THE QUERY IS CORRECT."
    from harness_sql.tasks.pocket import PocketTasks

    gold = next((task.gold for task in PocketTasks().load("val") if task.question in question), "SELECT 1")
    return f"```sql\n{gold if (int(request.body['seed']) + len(question)) % 2 else 'SELECT 1'}\n```"


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, scripted_server_factory: StartServer
) -> dict[tuple[str, int], tuple[Any, ...]]:
    """Rows of an evaluation in the usual way: its store and its runner are its own."""
    sides = Sides(tmp_path_factory.mktemp("undisturbed"), scripted_server_factory(seeded, token_ids=False))
    assert sides.evaluation(runners=1, apart=False).wait(300) == 0, sides.said("eval")
    rows = sides.rows()
    sides.end()
    assert len(rows) == TASKS and {reward for _, reward, *_ in rows.values()} == {0.0, 1.0}
    return rows


@pytest.fixture
def sides(tmp_path: Path, scripted_server: StartServer) -> Iterator[Sides]:
    with ExitStack() as after:
        made = Sides(tmp_path, scripted_server(seeded, token_ids=False))
        after.callback(made.end)
        yield made


def test_any_order_and_the_death_of_each_side_change_no_reward(
    sides: Sides, undisturbed: dict[tuple[str, int], tuple[Any, ...]]
) -> None:
    runner = sides.runner()  # first, before there is a store or a run
    evaluation = sides.evaluation()
    wait_for(lambda: "waits for the store" in sides.said("eval") and "waits for the store" in sides.said("runner"))
    store = sides.store()
    wait_for(lambda: len(sides.server.requests) > 4)
    store.kill()  # under rollouts
    store.wait()
    wait_for(lambda: "does not answer: waits for it" in sides.said("eval"))
    store = sides.store()
    before = len(sides.server.requests)
    wait_for(lambda: len(sides.server.requests) > before + 4)
    runner.kill()  # a whole machine, under rollouts; another one joins
    another = sides.runner(log="another")
    assert evaluation.wait(300) == 0, sides.said("eval")
    assert sides.rows() == undisturbed
    assert sides.record()["result"]["outcomes"] == {"ok": TASKS}
    key = sides.key_file.read_text().strip()
    listed = httpx.get(f"{sides.url}/runs", headers={"Authorization": f"Bearer {key}"}, trust_env=False).json()
    assert listed == {"runs": []}  # the run took all that is known of it with it
    another.send_signal(signal.SIGTERM)
    assert another.wait(60) == 130
    assert key not in "".join(map(sides.said, ("eval", "runner", "another", "store.log")))
    assert "Traceback" not in sides.said("eval") + sides.said("another") + sides.said("store.log")


def test_a_runner_that_is_told_to_stop_hands_its_rollouts_on_and_uses_up_no_retry(
    sides: Sides, undisturbed: dict[tuple[str, int], tuple[Any, ...]]
) -> None:
    sides.store()
    evaluation = sides.evaluation("--set", "rollout.retries=0")
    for number in range(3):
        before = len(sides.server.requests)
        runner = sides.runner(log=f"runner-{number}")
        wait_for(lambda before=before: len(sides.server.requests) > before + 3)
        if number < 2:
            runner.terminate()
            assert runner.wait(60) == 130, sides.said(f"runner-{number}")
            assert "handed on" in sides.said(f"runner-{number}")
    assert evaluation.wait(300) == 0, sides.said("eval")
    assert sides.rows() == undisturbed


def test_two_runs_at_once_and_one_after_another_at_one_store_do_not_mix(
    sides: Sides, undisturbed: dict[tuple[str, int], tuple[Any, ...]]
) -> None:
    store = sides.store()
    sides.runner(log="first")
    both = [sides.evaluation(log=f"eval-{number}", runners=number) for number in range(2)]
    assert [process.wait(300) for process in both] == [0, 0], sides.said("eval-0") + sides.said("eval-1")
    assert sides.evaluation(log="eval-2").wait(300) == 0, sides.said("eval-2")  # the runner goes on to the next run
    assert [sides.rows(f"eval-{number}") == undisturbed for number in range(3)] == [True] * 3
    assert store.poll() is None


def test_the_store_answers_nobody_without_its_key(sides: Sides) -> None:
    store = sides.store()
    line = wait_for(lambda: sides.store_log.exists() and sides.store_log.read_text())
    assert line == f"store: {sides.url} (its key: {sides.key_file})\n"
    assert stat.S_IMODE(sides.key_file.stat().st_mode) == 0o600
    key = sides.key_file.read_text().strip()
    assert key not in line + " ".join(psutil.Process(store.pid).cmdline())
    for method, path in (("GET", "/runs"), ("PUT", "/runs/r.1"), ("POST", "/runs/r.1/v1/agl/rollouts"), ("GET", "/")):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": key}):
            answer = httpx.request(method, f"{sides.url}{path}", headers=headers, trust_env=False)
            assert answer.status_code == 401 and key not in answer.text
    assert httpx.get(f"{sides.url}/health", trust_env=False).status_code == 200
    shown = {"Authorization": f"Bearer {key}"}
    assert httpx.get(f"{sides.url}/runs", headers=shown, trust_env=False).json() == {"runs": []}
    assert httpx.get(f"{sides.url}/runs/r.1/v1/agl/health", headers=shown, trust_env=False).status_code == 503
    other = sides.folder / "other.key"
    other.write_text("another-key-of-another-store\n")
    other.chmod(0o644)
    sides.start("store", "--port", "0", "--key-file", other, log="open").wait(60)
    assert f"others may read it: chmod 600 {other}" in sides.said("open")
    store.terminate()
    assert store.wait(30) in (0, -signal.SIGTERM) and "Traceback" not in sides.said("store.log")


def test_wrong_keys_and_missing_stores_are_refused_in_one_line(
    command: Callable[..., subprocess.CompletedProcess[str]],
    sides: Sides,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(sides.key_file.parent))
    arguments = (*EVALUATION, "--endpoint", sides.server.base_url, "--runs-dir", tmp_path / "none")
    refused = command(*arguments, AGL_MANAGED_STORE="0")
    assert refused.returncode == 2 and "nothing says where the store is: give --store URL" in refused.stderr
    monkeypatch.setattr("harness_apart.elsewhere.runs_at.__defaults__", (0.1,))
    for named in ({"AGL_SERVER_PORT": sides.url.rpartition(":")[2], "AGL_SERVER_HOST": "127.0.0.1"}, {}):
        more = ("--external-store-address", sides.url) if not named else ()
        refused = command(*arguments, *more, **({"AGL_MANAGED_STORE": "0"} | named))
        assert refused.returncode == 2 and f"no store at {sides.url} after 0.1 s" in refused.stderr
    refused = command(*arguments, "--store", sides.server.base_url.removesuffix("/v1"))
    assert refused.returncode == 2 and "is no store that `harness store` started" in refused.stderr
    refused = command(*arguments, "--store", "10.0.0.1:4747")
    assert refused.returncode == 2 and "rollout.store" in refused.stderr
    sides.store()
    wait_for(lambda: sides.store_log.exists() and sides.store_log.read_text())
    refused = command(*arguments, "--store", sides.url, HARNESS_STORE_KEY="some-other-key-of-the-user")
    assert refused.returncode == 2 and "has another key than HARNESS_STORE_KEY" in refused.stderr
    refused = command("runner", "--store", sides.url, "--wait", "0")
    assert refused.returncode == 2 and f"no run at {sides.url} within 0 s" in refused.stderr
    assert not list((tmp_path / "none").glob("*")), "an error left an empty run"


def test_a_store_that_stays_away_ends_a_run_in_one_line(
    command: Callable[..., subprocess.CompletedProcess[str]], sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(sides.key_file.parent))
    for module in ("harness.rollout.store", "harness_apart.elsewhere"):
        monkeypatch.setattr(f"{module}.AWAY_S", 2.0)
    store = sides.store()
    wait_for(lambda: sides.store_log.exists() and sides.store_log.read_text())
    asked = sides.server._script

    def fatal(request: ReceivedRequest) -> Reply | str:
        store.kill()
        return asked(request) if callable(asked) else ""

    monkeypatch.setattr(sides.server, "_script", fatal)
    arguments = ("--endpoint", sides.server.base_url, "--runs-dir", sides.folder / "runs", "--store", sides.url)
    ended = command(*EVALUATION, *arguments)
    assert ended.returncode == 1 and "Traceback" not in ended.stderr, ended.stderr
    assert re.search(
        rf"^harness: the store at {sides.url}\S* has not answered for 2 s: start it again", ended.stderr, re.M
    )
    (run,) = (sides.folder / "runs").iterdir()
    record = json.loads((run / "run.json").read_text())
    assert record["status"] == "failed" and "has not answered" in record["reason"]


class Collector:
    """A minimal OTLP/HTTP receiver: decodes what comes with OpenTelemetry's own protobuf."""

    def __init__(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        spans = self.spans = list[Any]()
        headers = self.headers = list[str | None]()

        class Receives(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers["content-encoding"] == "gzip":
                    body = gzip.decompress(body)
                asked = ExportTraceServiceRequest.FromString(body)
                headers.append(self.headers["x-team"])
                spans.extend(one for of in asked.resource_spans for scope in of.scope_spans for one in scope.spans)
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Receives)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}


def test_spans_of_rollouts_go_to_the_collector_that_the_standard_variables_name(
    command: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, scripted_server: StartServer
) -> None:
    server, collector = scripted_server(seeded, token_ids=False), Collector()
    arguments = ("eval", "--agent", "reference_sql", "--endpoint", server.base_url, "--limit", "3", "--json")
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_EXPORTER_OTLP_HEADERS": "x-team=blue"}
    try:
        done = command(*arguments, "--set", "max_turns=2", "--runs-dir", tmp_path, **variables)
    finally:
        collector.server.shutdown()
        collector.server.server_close()
    assert done.returncode == 0, done.stderr
    folder = RunFolder.open(next(tmp_path.iterdir()))
    rows = {row["rollout_id"]: row for row in folder.rows("episodes")}
    wholes = {attributes(one)["harness.rollout_id"]: one for one in collector.spans if one.name == "harness.attempt"}
    assert wholes.keys() == rows.keys() and set(collector.headers) == {"blue"}
    for rollout_id, whole in wholes.items():
        below = [one for one in collector.spans if one.trace_id == whole.trace_id and one is not whole]
        assert len(below) == 2 and {attributes(one)["harness.role"] for one in below} == {"write_query", "check_query"}
        assert {one.parent_span_id for one in below} == {whole.span_id} and not whole.parent_span_id
        assert attributes(whole)["harness.answer"] == rows[rollout_id]["answer"]
        assert all(whole.start_time_unix_nano <= one.start_time_unix_nano < one.end_time_unix_nano for one in below)
        assert "harness.record" not in "".join(str(one) for one in (whole, *below))
    lost = command(*arguments, "--runs-dir", tmp_path, **variables)  # nobody listens there any more
    assert lost.returncode == 0 and json.loads(lost.stdout)["result"]["outcomes"] == {"ok": 3}
