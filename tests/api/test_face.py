"""`import harness`, and runs and comparisons as Python has them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cells import code_cells, executed

import harness
from harness.api import training
from harness.contracts.hookspecs import TrainerSpec, hookimpl
from harness.contracts.trainers import LiveRun, Trainer
from harness.errors import ConfigError, HarnessError, UserError
from harness.mock_model.server import Reply
from harness.plugins import Registry
from harness.runs.folder import RowLog
from harness.runs.progress import Progress
from harness.testing.fixtures import StartServer

ROOT = Path(__file__).parents[2]
RUN = ROOT / "results" / "cpu" / "seed0"
STUDY = ROOT / "results" / "studies" / "frameworks"
Command = Callable[..., subprocess.CompletedProcess[str]]
QUERY = "```sql\nSELECT 1\n```"


@pytest.fixture(autouse=True)
def nothing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY", "MODEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "cache"))


def in_python(code: str, **options: Any) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_it_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import harness; print(sorted(set(sys.modules) - before))"
    assert set(json.loads(in_python(code).replace("'", '"'))) <= {"__future__", "harness"}


def test_its_names_are_those_of_their_homes() -> None:
    import harness_sql
    from harness.compare.comparison import compare
    from harness.records import Task
    from harness_sql.sqlite.sandbox import execute

    assert harness.Task is Task and harness.hookimpl is hookimpl and harness_sql.execute is execute
    assert set(dir(harness)) == set(harness.__all__)
    assert callable(harness.compare) and harness.compare.comparison.compare is compare
    with pytest.raises(AttributeError, match="module 'harness' has no attribute 'Tsk'"):
        _ = harness.Tsk
    with pytest.raises(ImportError):
        from harness import trian  # noqa: F401


def test_pandas_is_imported_for_tables_only() -> None:
    code = (
        "import sys, harness\n"
        f"run = harness.load_run({str(RUN)!r}); run._repr_html_(); repr(run); run.config\n"
        "print('pandas' in sys.modules, len(run.steps), 'pandas' in sys.modules)"
    )
    assert in_python(code) == "False 21 True\n"


def test_a_run_has_its_rows_as_tables() -> None:
    run = harness.load_run(RUN)
    assert (
        os.fspath(run) == str(RUN)
        and run.record["status"] == "finished"
        and run.config.agent == "langgraph_sql"
    )
    assert run.steps["val/reward"].dropna().iloc[-1] == run.result["val_accuracy_final"]
    assert set(run.episodes["phase"]) == {"train", "val"}
    assert set(run.calls["role"]) == {"write_query", "check_query", "rewrite_query"}
    assert "finished after 20 steps" in run.summary and "train finished" in repr(run)


def test_text_of_others_is_shown_and_not_obeyed(tmp_path: Path) -> None:
    shutil.copytree(RUN, folder := tmp_path / "run")
    record = json.loads((folder / "run.json").read_text())
    record["agent"] = record["config"]["agent"] = "<img src=x onerror=alert(1)>"
    record |= {"reason": "\x1b[31m\u202e<script>"}
    (folder / "run.json").write_text(json.dumps(record))
    shown = harness.load_run(folder)._repr_html_()
    assert "<img" not in shown and "&lt;img" in shown and "<script" not in shown
    assert "\x1b" not in shown and r"\x1b[31m\u202e" in shown
    compared = harness.compare(folder)._repr_html_()
    assert "<img" not in compared and "&lt;img" in compared


@pytest.mark.slow
def test_a_comparison_is_that_of_the_command(command: Command) -> None:
    study = harness.compare(STUDY)
    done = command("compare", STUDY, "--format", "json")
    assert json.loads(done.stdout) == json.loads(study.render("json"))
    assert [*study.tables["accuracy"]["arm"]] == [arm["name"] for arm in study.data["arms"]]
    shown = study._repr_html_()
    assert shown.count("<table>") == len(study.tables) and "Baseline: reference_sql." in shown
    one, other = RUN, harness.load_run(RUN.with_name("seed1"))
    assert harness.compare([one, other]).data == harness.compare(one, other).data


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: harness.train(ci=True, ci_fast=True), "train --ci --ci-fast"),
    (lambda: harness.train(settings={"train.stepz": 3}), "train --set train.stepz=3"),
    (lambda: harness.train("nobody", preset="cpu"), "train --plugin nobody --preset cpu"),
    (lambda: harness.train(resume=RUN, seed=3), f"train --resume {RUN} --seed 3"),
    (lambda: harness.train(resume="nowhere"), "train --resume nowhere"),
    (lambda: harness.evaluate(), "eval"),
    (lambda: harness.evaluate(RUN, model="x"), f"eval {RUN} --model x"),
    (
        lambda: harness.evaluate(endpoint="nonsense", model="m"),
        "eval --endpoint nonsense --model m",
    ),
    (lambda: harness.load_run("nowhere"), "runs show nowhere"),
    (lambda: harness.compare(ROOT / "results" / "cpu"), f"compare {ROOT / 'results' / 'cpu'}"),
    (lambda: harness.compare(RUN, baseline="nobody"), f"compare {RUN} --baseline nobody"),
    (lambda: harness.compare(RUN).render("docx"), f"compare {RUN} --format docx"),
]


@pytest.mark.parametrize(("call", "line"), WRONG, ids=[line[:30] for _, line in WRONG])
def test_errors_are_those_of_the_command(
    call: Callable[[], object],
    line: str,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        call()
    done = command(*line.split())
    assert (done.returncode, done.stderr) == (2, f"harness: {error.value}\n")
    assert not (tmp_path / "runs").exists()


def test_settings_are_a_mapping_or_texts_and_count_in_order(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "agent": "reference_sql",
        "preset": "cpu",
        "ci_fast": True,
        "runs_dir": tmp_path,
    }
    mapping = {
        "train.learning_rate": 1e-4,
        "task.options": {"schema_chars": 900},
        "task.val_limit": 3,
    }
    texts = ["train.learning_rate=1e-4", "task.options.schema_chars=900", "task.val_limit=3"]
    one, other = (
        training.Wanted(settings=given, **options).asked().config for given in (mapping, texts)
    )
    assert one == other and (one.train.steps, one.task.val_limit) == (1, 3)
    more = {**options, "model": tmp_path, "steps": 5}
    found = training.Wanted(settings={"train.steps": 3}, **more).asked().config
    assert found.train.steps == 5 and found.policy.path == str(tmp_path)
    with pytest.raises(UserError, match="settings is a mapping or a list"):
        training.Wanted(settings="train.steps=3", **options).asked()
    with pytest.raises(ConfigError, match="--set wants key=value"):
        training.Wanted(settings=["train.steps"], **options).asked()


class Idle(Trainer):
    """Trains nothing, and is interrupted where the seed is 1."""

    def fit(self, run: LiveRun) -> None:
        asyncio.run(asyncio.sleep(0))  # as trainers with rollouts do
        steps = RowLog(run.folder, "steps")
        for step in range(run.done + 1, run.steps + 1):
            steps.add([{"step": step, "data": {"step_s": 0.5}}])
            run.poll()
            if run.config.seed == 1:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(60)


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    module = ModuleType("idle_plugin")
    spec = TrainerSpec("idle", f"{__name__}:Idle", "")
    vars(module).update({"HARNESS_API": 1, "harness_trainers": hookimpl(lambda: [spec])})
    monkeypatch.setitem(sys.modules, "idle_plugin", module)
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Idle.__module__])
    found = Registry(
        [*entry_points(group="harness", name="sql"), EntryPoint("idle", "idle_plugin", "harness")]
    )
    monkeypatch.setattr("harness.plugins.registry", lambda: found)
    return {"train.trainer": "idle", "train.batch_size": 4, "device": "cpu"}


def test_a_training_returns_the_run_also_inside_an_event_loop(
    idle: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports: list[Progress] = []

    async def cell() -> harness.LoadedRun:
        options: dict[str, Any] = {"settings": idle, "runs_dir": tmp_path}
        return harness.train(
            "reference_sql", preset="cpu", steps=2, on_progress=reports.append, **options
        )

    run = asyncio.run(cell())
    assert run.record["status"] == "finished" and run.steps["step"].tolist() == [1, 2] and reports
    output = capsys.readouterr()
    assert (
        "idle is being started" in output.err
        and "2 of 2 steps done" in output.err
        and output.out == ""
    )
    again = harness.train(resume=run, progress=False)
    assert again.id == run.id and capsys.readouterr().err == ""


def test_an_interrupted_training_ends_as_the_command_does(
    idle: dict[str, Any], tmp_path: Path
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(
        KeyboardInterrupt,
        match=r"no checkpoint was saved yet \(train.save_every\). Start over: harness train --resume",
    ):
        harness.train(
            "reference_sql",
            preset="cpu",
            seed=1,
            steps=1,
            settings=idle,
            runs_dir=tmp_path,
            progress=False,
        )
    (folder,) = tmp_path.glob("2*")
    assert harness.load_run(folder).record["status"] == "interrupted"
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
def test_an_evaluation_inside_an_event_loop_and_in_a_thread(
    tmp_path: Path, scripted_server: StartServer
) -> None:
    """The loop that waits still hears of signals afterwards."""
    server = scripted_server(lambda request: QUERY, token_ids=False)
    options: dict[str, Any] = {"agent": "reference_sql", "endpoint": server.base_url, "limit": 2}
    options |= {"settings": {"max_turns": 1}, "runs_dir": tmp_path, "progress": False}

    async def cell() -> list[harness.LoadedRun]:
        heard = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, heard.set)
        runs = [harness.evaluate(**options), await asyncio.to_thread(harness.evaluate, **options)]
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(heard.wait(), 60)
        assert asyncio.get_event_loop_policy().get_event_loop() is asyncio.get_running_loop()
        return runs

    for run in asyncio.run(cell()):
        assert (
            run.record["kind"] == "eval"
            and run.result["scored"] == 2
            and "2 scored of 2 tasks" in run.summary
        )


@pytest.mark.slow
def test_an_interrupt_ends_an_evaluation_inside_an_event_loop(
    tmp_path: Path, scripted_server: StartServer
) -> None:
    server = scripted_server(lambda request: Reply(hang=True), token_ids=False)
    code = (
        "import asyncio, harness\n"
        "async def cell():\n"
        "    try:\n"
        f"        harness.evaluate(agent='reference_sql', endpoint={server.base_url!r}, limit=2,\n"
        f"                         runs_dir={str(tmp_path)!r})\n"
        "    except KeyboardInterrupt:\n"
        "        await asyncio.sleep(0)\n"
        "        print('interrupted')\n"
        "asyncio.run(cell())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:
        while not server.requests:
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=120)[0] == "interrupted\n"
    assert process.returncode == 0
    (folder,) = tmp_path.glob("2*")
    assert harness.load_run(folder).record["status"] == "interrupted"


@pytest.mark.slow
def test_the_notebook_shows_what_its_cells_give() -> None:
    file = ROOT / "examples" / "first_look.ipynb"
    cells = list(code_cells(json.loads(file.read_text(encoding="utf-8"))))
    assert len(cells) == 6

    def texts(outputs: list[dict[str, Any]]) -> list[Any]:
        data = (output.get("data", output) for output in outputs)
        return [
            {kind: one[kind] for kind in ("text", "text/plain", "text/html") if kind in one}
            for one in data
        ]

    for cell, outputs in zip(cells, executed(file), strict=True):
        assert texts(cell["outputs"]) == texts(outputs), (
            "run: python tests/api/cells.py examples/first_look.ipynb"
        )
    assert file.stat().st_size < 20_000 and issubclass(harness.NotComparable, HarnessError)
