"""Store, trainer and runners apart, started in any order, each killed once: rewards are as if undisturbed."""

from __future__ import annotations

import gzip
import json
import re
import signal
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from harness.mock_model.server import ReceivedRequest, Reply, ScriptedServer
from harness.runs.folder import RunFolder
from harness.testing.fixtures import StartServer
from sides import EVALUATION, TASKS, Sides, seeded, wait_for

pytestmark = pytest.mark.timeout(580)


class Served(Sides):
    """With the scripted server at hand."""

    def __init__(self, folder: Path, server: ScriptedServer) -> None:
        super().__init__(folder, server.base_url)
        self.server = server


@pytest.fixture
def sides(tmp_path: Path, scripted_server: StartServer) -> Iterator[Served]:
    with ExitStack() as after:
        made = Served(tmp_path, scripted_server(seeded, token_ids=False))
        after.callback(made.end)
        yield made


@pytest.mark.slow
def test_any_order_and_the_death_of_each_side_change_no_reward(
    sides: Served, undisturbed: dict[tuple[str, int], tuple[Any, ...]]
) -> None:
    runner = sides.runner()  # first, before there is a store or a run
    evaluation = sides.evaluation()
    wait_for(
        lambda: (
            "waiting for the store" in sides.output("eval")
            and "waiting for the store" in sides.output("runner")
        )
    )
    store = sides.store()
    wait_for(lambda: len(sides.server.requests) > 4)
    store.kill()  # under rollouts
    store.wait()
    wait_for(lambda: "does not answer: waiting for it" in sides.output("eval"))
    store = sides.store()
    before = len(sides.server.requests)
    wait_for(lambda: len(sides.server.requests) > before + 4)
    runner.kill()  # a whole machine, under rollouts; another one joins
    another = sides.runner(log="another")
    assert evaluation.wait(300) == 0, sides.output("eval")
    assert sides.rows() == undisturbed
    assert sides.record()["result"]["outcomes"] == {"ok": TASKS}
    key = sides.key_file.read_text().strip()
    listed = httpx.get(
        f"{sides.url}/runs", headers={"Authorization": f"Bearer {key}"}, trust_env=False
    ).json()
    assert listed == {"runs": []}  # the run took all that is known of it with it
    another.send_signal(signal.SIGTERM)
    assert another.wait(60) == 130
    assert key not in "".join(map(sides.output, ("eval", "runner", "another", "store.log")))
    assert "Traceback" not in sides.output("eval") + sides.output("another") + sides.output(
        "store.log"
    )


@pytest.mark.slow
def test_a_runner_that_is_told_to_stop_hands_its_rollouts_on_and_uses_up_no_retry(
    sides: Served, undisturbed: dict[tuple[str, int], tuple[Any, ...]]
) -> None:
    sides.store()
    evaluation = sides.evaluation("--set", "rollout.retries=0")
    for number in range(3):
        before = len(sides.server.requests)
        runner = sides.runner(log=f"runner-{number}")
        wait_for(lambda before=before: len(sides.server.requests) > before + 3)
        if number < 2:
            runner.terminate()
            assert runner.wait(60) == 130, sides.output(f"runner-{number}")
            assert "handed on" in sides.output(f"runner-{number}")
    assert evaluation.wait(300) == 0, sides.output("eval")
    assert sides.rows() == undisturbed


@pytest.mark.slow
def test_two_runs_at_once_and_one_after_another_at_one_store_do_not_mix(
    sides: Served, undisturbed: dict[tuple[str, int], tuple[Any, ...]]
) -> None:
    store = sides.store()
    sides.runner(log="first")
    both = [sides.evaluation(log=f"eval-{number}", runners=number) for number in range(2)]
    assert [process.wait(300) for process in both] == [0, 0], sides.output("eval-0") + sides.output(
        "eval-1"
    )
    assert sides.evaluation(log="eval-2").wait(300) == 0, sides.output(
        "eval-2"
    )  # the runner goes on to the next run
    assert [sides.rows(f"eval-{number}") == undisturbed for number in range(3)] == [True] * 3
    assert store.poll() is None


@pytest.mark.slow
def test_the_store_answers_nobody_without_its_key(sides: Served) -> None:
    store = sides.store()
    line = wait_for(lambda: sides.store_log.exists() and sides.store_log.read_text())
    assert line == f"store: {sides.url} (its key: {sides.key_file})\n"
    assert stat.S_IMODE(sides.key_file.stat().st_mode) == 0o600
    key = sides.key_file.read_text().strip()
    assert key not in line + " ".join(psutil.Process(store.pid).cmdline())
    for method, path in (
        ("GET", "/runs"),
        ("PUT", "/runs/r.1"),
        ("POST", "/runs/r.1/v1/agl/rollouts"),
        ("GET", "/"),
    ):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": key}):
            answer = httpx.request(method, f"{sides.url}{path}", headers=headers, trust_env=False)
            assert answer.status_code == 401 and key not in answer.text
    assert httpx.get(f"{sides.url}/health", trust_env=False).status_code == 200
    shown = {"Authorization": f"Bearer {key}"}
    assert httpx.get(f"{sides.url}/runs", headers=shown, trust_env=False).json() == {"runs": []}
    assert (
        httpx.get(f"{sides.url}/runs/r.1/v1/agl/health", headers=shown, trust_env=False).status_code
        == 503
    )
    other = sides.folder / "other.key"
    other.write_text("another-key-of-another-store\n")
    other.chmod(0o644)
    sides.start("store", "--port", "0", "--key-file", other, log="open").wait(60)
    assert f"others may read it: chmod 600 {other}" in sides.output("open")
    store.terminate()
    assert store.wait(30) in (0, -signal.SIGTERM) and "Traceback" not in sides.output("store.log")


@pytest.mark.slow
def test_wrong_keys_and_missing_stores_are_refused_in_one_line(
    command: Callable[..., subprocess.CompletedProcess[str]],
    sides: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(sides.key_file.parent))
    arguments = (*EVALUATION, "--endpoint", sides.server.base_url, "--runs-dir", tmp_path / "none")
    refused = command(*arguments, AGL_MANAGED_STORE="0")
    assert (
        refused.returncode == 2
        and "requires a store, and none is named: give --store URL" in refused.stderr
    )
    monkeypatch.setattr("harness_distributed.remote_queue.runs_at.__defaults__", (0.1,))
    for named in (
        {"AGL_SERVER_PORT": sides.url.rpartition(":")[2], "AGL_SERVER_HOST": "127.0.0.1"},
        {},
    ):
        more = ("--external-store-address", sides.url) if not named else ()
        refused = command(*arguments, *more, **({"AGL_MANAGED_STORE": "0"} | named))
        assert refused.returncode == 2 and f"no store at {sides.url} after 0.1 s" in refused.stderr
    refused = command(*arguments, "--store", sides.server.base_url.removesuffix("/v1"))
    assert refused.returncode == 2 and "is no store that `harness store` started" in refused.stderr
    refused = command(*arguments, "--store", "10.0.0.1:4747")
    assert refused.returncode == 2 and "rollout.store" in refused.stderr
    sides.store()
    wait_for(lambda: sides.store_log.exists() and sides.store_log.read_text())
    refused = command(
        *arguments, "--store", sides.url, HARNESS_STORE_KEY="some-other-key-of-the-user"
    )
    assert refused.returncode == 2 and "has another key than HARNESS_STORE_KEY" in refused.stderr
    refused = command("runner", "--store", sides.url, "--wait", "0")
    assert refused.returncode == 2 and f"no run at {sides.url} within 0 s" in refused.stderr
    assert not list((tmp_path / "none").glob("*")), "an error left an empty run"


@pytest.mark.slow
def test_a_store_that_stays_away_ends_a_run_in_one_line(
    command: Callable[..., subprocess.CompletedProcess[str]],
    sides: Served,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(sides.key_file.parent))
    for module in ("harness_agentlightning_queue.store", "harness_distributed.remote_queue"):
        monkeypatch.setattr(f"{module}.AWAY_S", 2.0)
    store = sides.store()
    wait_for(lambda: sides.store_log.exists() and sides.store_log.read_text())
    asked = sides.server._script

    def fatal(request: ReceivedRequest) -> Reply | str:
        store.kill()
        return asked(request) if callable(asked) else ""

    monkeypatch.setattr(sides.server, "_script", fatal)
    arguments = (
        "--endpoint",
        sides.server.base_url,
        "--runs-dir",
        sides.folder / "runs",
        "--store",
        sides.url,
    )
    ended = command(*EVALUATION, *arguments)
    assert ended.returncode == 1 and "Traceback" not in ended.stderr, ended.stderr
    assert re.search(
        rf"^harness: the store at {sides.url}\S* has not answered for 2 s: start it again",
        ended.stderr,
        re.M,
    )
    (run,) = (sides.folder / "runs").iterdir()
    record = json.loads((run / "run.json").read_text())
    assert record["status"] == "failed" and "has not answered" in record["reason"]


class Collector:
    """A minimal OTLP/HTTP receiver: decodes what comes with OpenTelemetry's own protobuf."""

    def __init__(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        spans = self.spans = list[Any]()
        headers = self.headers = list[str | None]()

        class Receives(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers["content-encoding"] == "gzip":
                    body = gzip.decompress(body)
                asked = ExportTraceServiceRequest.FromString(body)
                headers.append(self.headers["x-team"])
                spans.extend(
                    one
                    for of in asked.resource_spans
                    for scope in of.scope_spans
                    for one in scope.spans
                )
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


@pytest.mark.slow
def test_spans_of_rollouts_go_to_the_collector_that_the_standard_variables_name(
    command: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    scripted_server: StartServer,
) -> None:
    server, collector = scripted_server(seeded, token_ids=False), Collector()
    arguments = (
        "eval",
        "--agent",
        "reference_sql",
        "--endpoint",
        server.base_url,
        "--limit",
        "3",
        "--json",
    )
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-team=blue",
    }
    try:
        done = command(*arguments, "--set", "max_turns=2", "--runs-dir", tmp_path, **variables)
    finally:
        collector.server.shutdown()
        collector.server.server_close()
    assert done.returncode == 0, done.stderr
    folder = RunFolder.open(next(tmp_path.iterdir()))
    rows = {row["rollout_id"]: row for row in folder.rows("episodes")}
    wholes = {
        attributes(one)["harness.rollout_id"]: one
        for one in collector.spans
        if one.name == "harness.attempt"
    }
    assert wholes.keys() == rows.keys() and set(collector.headers) == {"blue"}
    for rollout_id, whole in wholes.items():
        below = [
            one for one in collector.spans if one.trace_id == whole.trace_id and one is not whole
        ]
        assert len(below) == 2 and {attributes(one)["harness.role"] for one in below} == {
            "write_query",
            "check_query",
        }
        assert {one.parent_span_id for one in below} == {whole.span_id} and not whole.parent_span_id
        assert attributes(whole)["harness.answer"] == rows[rollout_id]["answer"]
        assert all(
            whole.start_time_unix_nano <= one.start_time_unix_nano < one.end_time_unix_nano
            for one in below
        )
        assert "harness.record" not in "".join(str(one) for one in (whole, *below))
    lost = command(*arguments, "--runs-dir", tmp_path, **variables)  # nobody listens there any more
    assert lost.returncode == 0 and json.loads(lost.stdout)["result"]["outcomes"] == {"ok": 3}
