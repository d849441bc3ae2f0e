"""`harness eval`, `dev` and `run` against a plain OpenAI-compatible server that knows nothing of token ids."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from harness.gateway.server import GatewayServer
from harness.mock_model.server import ReceivedRequest, Reply
from harness.records import Attempt, Verdict
from harness.testing.calls import transition
from harness.testing.fixtures import StartServer
from harness.util.formatting import spoilt
from harness_sql.cli import ask
from harness_sql.sqlite.environment import database_of
from harness_sql.tasks.pocket import PocketTasks

NAMED = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY", "MODEL")


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def no_endpoint_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMED:
        monkeypatch.delenv(name, raising=False)


def process(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """`harness` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "harness", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
    )


def golden(request: ReceivedRequest) -> Reply | str:
    if "You check" in str(request.messages[0]["content"]):
        return "THE QUERY IS CORRECT."
    question = re.search(r"Question: (.*)", str(request.messages[-1]["content"]))
    assert question is not None
    return f"```sql\n{ {task.question: task.gold for task in PocketTasks().load('val')}[question.group(1)] }\n```"


@pytest.mark.slow
def test_eval_of_an_endpoint_that_knows_the_answers(
    tmp_path: Path, scripted_server: StartServer
) -> None:
    server = scripted_server(golden, token_ids=False)
    done = process(
        *("eval", "--plugin", "langgraph_sql", "--endpoint", server.base_url),
        *("--limit", "12", "--runs-dir", tmp_path, "--json"),
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["result"]["accuracy"] == 1.0 and record["result"]["scored"] == 12
    assert record["result"]["interval_95"][0] < 1.0
    assert record["kind"] == "eval" and record["status"] == "finished"


@pytest.mark.slow
def test_eval_says_how_far_it_is_before_anything_has_ended(
    command: Command, tmp_path: Path, scripted_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large policy on a busy machine takes minutes for its first answer."""
    monkeypatch.setattr("harness.api.display.EVERY_S", 0.5)
    server = scripted_server(
        lambda request: Reply(str(golden(request)), delay_s=2.0), token_ids=False
    )
    arguments = ("eval", "--plugin", "reference_sql", "--endpoint", server.base_url, "--limit", "1")
    done = command(*arguments, "--set", "max_turns=1", "--runs-dir", tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"^reference_sql on pocket/val: 0 of 1; running for [1-9]\d* s$", done.stderr, re.MULTILINE
    )
    assert done.stderr.count("1 of 1") == 1


@pytest.mark.slow
def test_eval_draws_several_samples_of_each_task(
    command: Command, tmp_path: Path, scripted_server: StartServer
) -> None:
    """Of four answers to a question two are right and written otherwise, one is wrong and one fails."""
    drawn: Counter[str] = Counter()

    def drawing(request: ReceivedRequest) -> Reply | str:
        reply = golden(request)
        if not str(reply).startswith("```"):
            return reply
        question = str(request.messages[-1]["content"])
        drawn[question] += 1
        return (
            reply,
            str(reply).replace("SELECT", "select"),
            "```sql\nSELECT 'wrong'\n```",
            "```sql\nSELECT nothing\n```",
        )[drawn[question] % 4]

    server = scripted_server(drawing, token_ids=False)
    arguments = ("eval", "--plugin", "reference_sql", "--endpoint", server.base_url, "--limit", "5")
    sampling = ("--samples", "4", "--temperature", "0.7", "--set", "max_turns=1")
    done = command(*arguments, *sampling, "--runs-dir", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "accuracy 50.0 %" in done.stdout and "20 scored of 20 rollouts" in done.stdout
    (run,) = tmp_path.iterdir()
    record = json.loads((run / "run.json").read_text())
    found = record["result"]["samples"]
    assert {name: round(one["mean"], 3) for name, one in found["measures"].items()} == {
        "best_1": 0.5,
        "best_2": 0.833,
        "best_4": 1.0,
        "worst_2": 0.167,
        "worst_4": 0.0,
        "agreed": 1.0,
    }
    assert record["result"]["tasks"] == found["tasks"] == 5 and found["short"] == 0
    assert (
        record["identity"]["samples"] == 4
        and record["identity"]["sampling_val"]["temperature"] == 0.7
    )
    assert {request.body["temperature"] for request in server.requests} == {0.7}
    assert len({request.body["seed"] for request in server.requests}) == 20
    shown = command("runs", "show", run)
    assert "pass@4, oracle" in shown.stdout and "self-consistency" in shown.stdout, shown.stderr


@pytest.mark.slow
def test_one_greedy_sample_a_task_is_the_default(
    command: Command, tmp_path: Path, scripted_server: StartServer
) -> None:
    server = scripted_server(golden, token_ids=False)
    arguments = (
        "eval",
        "--plugin",
        "reference_sql",
        "--endpoint",
        server.base_url,
        "--limit",
        "3",
        "--json",
    )
    records, sent = [], []
    for more in ((), ("--samples", "1", "--temperature", "0")):
        before = len(server.requests)
        done = command(*arguments, *more, "--runs-dir", tmp_path)
        assert done.returncode == 0, done.stderr
        records.append(json.loads(done.stdout))
        sent.append(
            sorted((r.body["seed"], r.body["temperature"]) for r in server.requests[before:])
        )
    assert sent[0] == sent[1] and {temperature for _, temperature in sent[0]} == {0.0}
    one, other = (
        {key: value for key, value in record.items() if key not in ("id", "launches")}
        | {"result": {key: value for key, value in record["result"].items() if key != "wall_s"}}
        | {"shadow": {key: value for key, value in record["shadow"].items() if key != "seconds"}}
        for record in records
    )
    assert (
        one == other
        and "samples" not in one["identity"] | one["result"]
        and "eval" not in one["config"]
    )


@pytest.mark.slow
def test_eval_of_a_dead_endpoint_fails_and_scores_nothing(
    command: Command, tmp_path: Path, scripted_server: StartServer
) -> None:
    server = scripted_server(lambda request: Reply.failure(500), token_ids=False)
    done = command(
        *("eval", "--plugin", "reference_sql", "--endpoint", server.base_url),
        *("--limit", "6", "--runs-dir", tmp_path),
    )
    assert done.returncode == 1
    assert "rollouts brought no score" in done.stderr and "Traceback" not in done.stderr
    (run,) = tmp_path.iterdir()
    assert json.loads((run / "run.json").read_text())["result"]["accuracy"] is None


@pytest.mark.slow
def test_a_disk_that_fills_up_ends_an_evaluation_in_one_line(
    command: Command,
    small_disk: Callable[[str], Path],
    fill: Callable[..., Path],
    scripted_server: StartServer,
) -> None:
    disk = small_disk("8m")

    def greedy(request: ReceivedRequest) -> Reply | str:
        fill(disk)
        return golden(request)

    server = scripted_server(greedy, token_ids=False)
    arguments = (
        "eval",
        "--plugin",
        "reference_sql",
        "--endpoint",
        server.base_url,
        "--limit",
        "6",
        "--runs-dir",
        disk,
    )
    done = command(*arguments)
    assert done.returncode == 1, done.stderr
    assert "No space left on device" in done.stderr and "Traceback" not in done.stderr
    (run,) = (path for path in disk.iterdir() if path.is_dir())
    record = json.loads((run / "run.json").read_text())
    assert record["status"] == "failed" and "No space left" in record["reason"]
    refused = command(*arguments)
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    assert "0 MiB of disk left and the run needs 4 MiB" in refused.stderr.splitlines()[-1]
    assert [path for path in disk.iterdir() if path.is_dir()] == [
        run
    ]  # it left no empty run behind


@pytest.mark.slow
def test_eval_whose_databases_change_under_it_says_so(
    tmp_path: Path, scripted_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    databases = sorted({database_of(task) for task in PocketTasks().load("val")})

    def meddling(request: ReceivedRequest) -> str:
        for path in map(Path, databases):
            path.chmod(0o644)
            path.write_bytes(path.read_bytes() + b"\0")
        return "```sql\nSELECT 1\n```"

    server = scripted_server(meddling, token_ids=False)
    done = process(
        *("eval", "--plugin", "reference_sql", "--endpoint", server.base_url),
        *("--limit", "4", "--runs-dir", tmp_path / "runs", "--json"),
    )
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)["result"]
    assert result["data_changed"] == [Path(path).stem for path in databases]
    assert done.stderr.count("the task set changed during the run") == 1
    assert f"; this means nothing: {Path(databases[0]).stem}" in spoilt(result)


@pytest.mark.slow
def test_dev_shows_every_call(command: Command, scripted_server: StartServer) -> None:
    server = scripted_server(golden, token_ids=False)
    done = command(
        "dev", "--plugin", "langgraph_sql", "--endpoint", server.base_url, "--tasks", "2"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("write_query") == 2 and done.stdout.count("check_query") == 2
    assert "THE QUERY IS CORRECT." in done.stdout and done.stdout.count("query_database") == 2
    assert done.stdout.count("reward 1 same result") == 2


def test_dev_prints_spans_and_verdicts_as_json(
    command: Command, scripted_server: StartServer
) -> None:
    server = scripted_server(golden, token_ids=False)
    arguments = ("--endpoint", server.base_url, "--tasks", "2", "--json")
    done = command("dev", "--plugin", "reference_sql", *arguments)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert [one["verdict"]["value"] for one in shown] == [1.0, 1.0] and len(
        {one["task"] for one in shown}
    ) == 2
    assert all(one["spans"] for one in shown)


def test_dev_takes_the_default_agent(command: Command, scripted_server: StartServer) -> None:
    server = scripted_server(golden, token_ids=False)
    done = command("dev", "--endpoint", server.base_url, "--tasks", "1")
    assert done.returncode == 0 and "reward 1 same result" in done.stdout, done.stderr


def test_dev_says_why_an_attempt_is_unscored(
    command: Command, scripted_server: StartServer
) -> None:
    server = scripted_server(lambda request: Reply.failure(500), token_ids=False)
    done = command(
        "dev", "--plugin", "reference_sql", "--endpoint", server.base_url, "--tasks", "1"
    )
    assert done.returncode == 0, done.stderr
    assert "unscored endpoint_error" in done.stdout and "reward 0" not in done.stdout


def heard_again() -> None:
    """Have a closed terminal be told, also where the tests themselves are run by `nohup`."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.slow
def test_an_evaluation_whose_terminal_is_closed_is_interrupted(
    tmp_path: Path, scripted_server: StartServer
) -> None:
    server = scripted_server(
        lambda request: Reply("```sql\nSELECT 1\n```", delay_s=1.0), token_ids=False
    )
    arguments = [
        "eval",
        "--plugin",
        "reference_sql",
        "--endpoint",
        server.base_url,
        "--limit",
        "60",
    ]
    arguments += ["--set", "rollout.concurrency=2", "--runs-dir", str(tmp_path)]

    def rows() -> int:
        return sum(
            file.read_bytes().count(b"\n") for file in tmp_path.glob("*/logs/episodes-*.jsonl")
        )

    def wait_for_rows(count: int) -> None:
        ends = time.monotonic() + 120
        while rows() < count:
            assert evaluation.poll() is None and time.monotonic() < ends, evaluation.communicate()
            time.sleep(0.1)

    for under_nohup in (True, False):
        command = ["nohup"] * under_nohup + [sys.executable, "-m", "harness", *arguments]
        evaluation = subprocess.Popen(
            command, stdout=-1, stderr=-1, text=True, start_new_session=True, preexec_fn=heard_again
        )
        wait_for_rows(1)
        children = psutil.Process(evaluation.pid).children(recursive=True)
        os.killpg(evaluation.pid, signal.SIGHUP)
        if under_nohup:
            wait_for_rows(rows() + 3)
            evaluation.terminate()
        else:
            with contextlib.suppress(ProcessLookupError):  # a shell and the kernel both say so
                os.killpg(evaluation.pid, signal.SIGHUP)
        output, wrong = evaluation.communicate(timeout=60)
        assert evaluation.returncode == 130 and wrong.endswith("harness: interrupted\n"), (
            output,
            wrong,
        )
        (run,) = tmp_path.iterdir()
        record = json.loads((run / "run.json").read_text())
        assert record["status"] == "interrupted" and record["launches"][-1]["ended"]
        assert not psutil.wait_procs(children, 10)[1]
        shutil.rmtree(run)


def test_dev_shows_what_a_terminal_would_obey(
    command: Command, scripted_server: StartServer
) -> None:
    obeyed = "\x1b]0;owned\x07\x1b[2J"
    server = scripted_server(
        lambda request: f"```sql\nSELECT '{obeyed}' FROM nowhere{obeyed}\n```", token_ids=False
    )
    for plugin in ("reference_sql", "reference_tools"):
        done = command("dev", "--plugin", plugin, "--endpoint", server.base_url, "--tasks", "1")
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout + done.stderr and r"\x1b]0;owned\x07" in done.stdout


def test_dev_shows_the_parts_of_a_reward(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    from harness.cli.dev import tree

    attempt = Attempt("ro-1", "at-1", "ok", "", "42", (), (), (), 0.0, 1.0)
    Console(width=120).print(
        tree(
            attempt,
            Verdict(0.7, "[close]", {"style": 0.4, "facts": 1.0}, ("rounded",), {"write": 0.2}),
        )
    )
    shown = capsys.readouterr().out
    for text in ("reward 0.7 [close]", "style 0.4", "facts 1", "write 0.2", "flags rounded"):
        assert text in shown, shown


def test_dev_shows_tools_offered_raw_reply_and_parsed_call(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from rich.console import Console

    from harness.cli.dev import tree

    read = transition(
        "assistant",
        offered_tools=("execute", "schema"),
        response_text="Let me see.",
        response_ids=(7, 8),
        tool_calls=({"function": {"name": "execute", "arguments": '{"sql": "SELECT 1"}'}},),
    )
    unread = transition(
        "assistant", 1, offered_tools=("execute",), response_text='{"name": "execute"}'
    )
    attempt = Attempt("ro-1", "at-1", "ok", "", "42", (read, unread), (), (), 0.0, 1.0)
    Console(width=120).print(tree(attempt, decode=lambda ids: f"<tools>{list(ids)}</tools>"))
    shown = capsys.readouterr().out
    for text in (
        "tools offered execute, schema",
        "raw reply <tools>[7, 8]</tools>",
        'parsed call execute {"sql": "SELECT 1"}',
        "the reply looks like a tool call, and the server parsed none there",
    ):
        assert text in shown, shown
    assert shown.count("raw reply") == shown.count("looks like a tool call") == 1


@pytest.mark.slow
def test_the_environment_names_an_endpoint_where_no_option_does(
    command: Command, tmp_path: Path, scripted_server: StartServer
) -> None:
    task = PocketTasks().load("val")[0]
    server = scripted_server(golden, token_ids=False)
    asking = ("run", "--question", task.question, "--db", database_of(task), "--json")
    settings = {"OPENAI_API_BASE": server.base_url, "OPENAI_API_KEY": "sk-1"}
    for arguments in (
        asking,
        ("eval", "--plugin", "reference_sql", "--limit", "1", "--runs-dir", tmp_path),
    ):
        before = len(server.requests)
        done = command(*arguments, **settings, MODEL=server.model)
        assert done.returncode == 0, done.stderr
        assert {request.headers["authorization"] for request in server.requests[before:]} == {
            "Bearer sk-1"
        }
    done = command(*asking, **settings, MODEL="elsewhere")
    assert done.returncode == 2 and "The model 'elsewhere' does not exist" in done.stderr
    unused = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "MODEL": "elsewhere"}
    done = command(
        "dev", "--plugin", "reference_sql", "--endpoint", server.base_url, "--tasks", "1", **unused
    )
    assert done.returncode == 0 and "reward 1" in done.stdout, done.stderr


def test_run_answers_one_question(command: Command, scripted_server: StartServer) -> None:
    task = PocketTasks().load("val")[0]
    server = scripted_server(golden, token_ids=False)
    done = command(
        "run",
        "--question",
        task.question,
        "--db",
        database_of(task),
        "--endpoint",
        server.base_url,
        "--json",
    )
    assert done.returncode == 0, done.stderr
    attempt = json.loads(done.stdout)
    assert attempt["answer"] == task.gold and attempt["transitions"][0]["prompt_ids"] is None


async def test_run_shows_that_it_waits_for_a_slow_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask, "PROGRESS_S", 0.05)
    with GatewayServer() as gateway:
        async with gateway.control() as control:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(ask._show_progress(control), 2)
    shown = capsys.readouterr().err
    assert "0 model calls answered after 0 s" in shown


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("style=create", "sample_rows=1")])
def test_run_dev_and_eval_send_the_same_requests_for_one_question(
    command: Command, tmp_path: Path, scripted_server: StartServer, options: tuple[str, ...]
) -> None:
    task = PocketTasks().load("val")[0]
    row = {"question": task.question, "query": task.gold, "database": database_of(task)}
    questions = tmp_path / "questions.jsonl"
    questions.write_text(json.dumps(row) + "\n")
    own = ["--task", "files", "--plugin", "reference_sql"]
    for option in options:
        own += ["--set", f"task.options.{option}"]
    file = ("--set", f"task.options.path={questions}", "--split", "all")
    server = scripted_server(golden, token_ids=False)
    sent = {}
    for name, arguments in {
        "run": ("run", "--question", task.question, "--db", database_of(task), "--json"),
        "dev": ("dev", *file, "--tasks", "1", "--json"),
        "eval": ("eval", *file, "--runs-dir", tmp_path / "runs"),
    }.items():
        before = len(server.requests)
        done = command(*arguments, *own, "--endpoint", server.base_url)
        assert done.returncode == 0, done.stderr
        bodies = [dict(request.body) for request in server.requests[before:]]
        for body in bodies:
            body.pop("seed")  # of the task's id, which a question of one's own has not
        sent[name] = [json.dumps(body) for body in bodies]
    assert len(sent["run"]) == 2
    assert sent["run"] == sent["dev"] == sent["eval"]


def test_run_refuses_a_task_set_of_another_environment(
    command: Command, scripted_server: StartServer
) -> None:
    task = PocketTasks().load("val")[0]
    server = scripted_server(golden, token_ids=False)
    asked = ("run", "--question", "?", "--db", database_of(task), "--task", "reasoning_gym")
    done = command(*asked, "--endpoint", server.base_url)
    assert done.returncode == 2
    assert "task set 'reasoning_gym' is not about one SQLite database" in done.stderr


def test_user_errors_are_one_line_and_status_2(command: Command, tmp_path: Path) -> None:
    for arguments, message in (
        (("train", "--plugin", "langgraf_sql"), "did you mean 'langgraph_sql'"),
        (
            ("train", "--plugin", "reference_sql", "--agent-match", "nobody"),
            "matches none of the roles",
        ),
        (("train", "--plugin", "reference_sql", "--agent-match", "("), "not a regular expression"),
        (("eval",), "nothing to measure"),
        (
            ("eval", "--model", "pocket-sql", "--step", "3"),
            "--step 3 selects a checkpoint of a run, and no run is given: name one",
        ),
        (
            ("dev", "--plugin", "reference_sql"),
            "no endpoint: give --endpoint URL, or set OPENAI_BASE_URL",
        ),
        (("eval", str(tmp_path)), "not a run folder"),
        (
            ("run", "--question", "?", "--db", "/no/such.sqlite", "--endpoint", "http://x/v1"),
            "no database at",
        ),
        (
            ("run", "--question", "?", "--db", __file__, "--endpoint", "http://127.0.0.1:9/v1"),
            "no model server answers at http://127.0.0.1:9/v1",
        ),
        (("no-such-command",), "no-such-command"),
    ):
        done = command(*arguments)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), (arguments, done.stderr)
        assert message in done.stderr, (arguments, done.stderr)


def test_help_is_instant() -> None:
    script = "import sys, harness.cli; sys.argv = ['harness', '--help']\ntry: harness.cli.main()\nexcept SystemExit: pass\n"
    names = ["torch", "verl", "litellm", "agentlightning", "ray", "pandas", "polars", "pydantic"]
    heavy = f"assert not set({names}) & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", script + heavy], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_agents_of_two_programs_are_refused_before_any_is_measured(
    command: Command, tmp_path: Path
) -> None:
    arguments = ("eval", "--model", "pocket-sql", "--agents", "reference_tools,reference_sql")
    done = command(*arguments, "--runs-dir", tmp_path / "runs")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "'tool_loop' and reference_sql runs 'self_correcting_sql'" in done.stderr
    assert not (tmp_path / "runs").exists()
