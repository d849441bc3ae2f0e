"""A run's record is finished however the run ends."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pyarrow.parquet as pq
import pytest

from harness.config import load_config
from harness.errors import ConfigError, RunFailed, TaskSetError, UserError
from harness.plugins import environment, make_task_set
from harness.records import Task
from harness.runs.folder import RowLog, RunFolder
from harness.runs.schema import RunRecord, Scores
from harness.training.checks import check
from harness.training.data import load_tasks
from harness.training.launch import StartedRun, recorded
from harness.training.provenance import model_hash
from harness.training.record import identity, tools_hash
from harness.training.task_order import validation_order
from harness.util import start_trace
from harness.util.endpoints import Endpoint
from harness_sql.tasks.pocket import PocketTasks


def test_a_trace_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for trace in (tmp_path, tmp_path / "no" / "trace.json", tmp_path / "file" / "trace.json"):
        with (
            pytest.raises(ConfigError, match="--trace-start .*cannot write there"),
            start_trace.recorded(trace),
        ):
            pass


@pytest.mark.parametrize("kind", ["train", "eval"])
@pytest.mark.parametrize(
    ("error", "raised", "status", "reason"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt, "interrupted", "interrupted by the user"),
        (RunFailed("the gateway died"), RunFailed, "failed", "the gateway died"),
        (ValueError("oh"), ValueError, "failed", "ValueError: oh"),
        (
            OSError(errno.ENOSPC, "No space left"),
            RunFailed,
            "failed",
            "OSError: [Errno 28] No space left",
        ),
    ],
)
def test_an_error_closes_record_launch_and_tables(
    tmp_path: Path,
    kind: Literal["train", "eval"],
    error: BaseException,
    raised: type[BaseException],
    status: str,
    reason: str,
) -> None:
    config = load_config("cpu", None, ["task.val_limit=2"], agent="reference_sql")
    folder, task_set = RunFolder.create(tmp_path, "x"), make_task_set(config)
    run = StartedRun(
        config, folder, task_set, [], validation_order(task_set.load("val"), config), "m", "cpu"
    )
    with pytest.raises(raised), recorded(run, kind, lambda record: {"scored": 1}):
        assert folder.read()["status"] == "running"
        RowLog(folder, "steps").add([{"step": 1, "data": {"step_s": 1.0}}])
        raise error
    record = folder.read()
    (launch,) = record["launches"]
    assert (
        (record["status"], record["reason"])
        == (launch["status"], launch["reason"])
        == (status, reason)
    )
    assert launch["load"] >= 0
    assert (
        launch["ended"]
        and record["result"]["scored"] == 1
        and record["result"]["data_changed"] == []
    )
    assert pq.read_table(folder.path / "steps.parquet")["step_s"].to_pylist() == [1.0]


@pytest.mark.parametrize(("agent", "tools"), [("reference_sql", False), ("reference_tools", True)])
def test_runs_say_where_calls_of_a_dialogue_are_one_row(agent: str, tools: bool) -> None:
    def identity_of(*overrides: str) -> dict[str, Any]:
        config = load_config("cpu", None, overrides, agent=agent)
        return identity(config, make_task_set(config), [], [], "m", "cpu")["train"]

    assert ("merged" in identity_of(), "merge_calls" in identity_of()) == (tools, False)
    apart = identity_of("train.merge_calls=false")
    assert (
        apart == identity_of("train.micro_batch_size=3", "train.merge_calls=false")
        and "merged" not in apart
    )
    assert identity_of() == apart | ({"merged": True} if tools else {})


def test_ctrl_c_while_a_run_is_written_down_leaves_it_as_it_ended(tmp_path: Path) -> None:
    config = load_config("cpu", None, ["task.val_limit=2"], agent="reference_sql")
    folder, task_set = RunFolder.create(tmp_path, "x"), make_task_set(config)
    run = StartedRun(
        config, folder, task_set, [], validation_order(task_set.load("val"), config), "m", "cpu"
    )

    def result(record: RunRecord) -> Scores:
        os.kill(os.getpid(), signal.SIGINT)
        return {"scored": 1}

    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # of a job in the background it is ignored
    try:
        with pytest.raises(RunFailed), recorded(run, "eval", result):
            raise RunFailed("the gateway died")
        assert folder.read()["status"] == "failed"
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_two_tasks_with_one_id_are_refused() -> None:
    config = load_config("cpu", agent="reference_sql")

    class Twice(PocketTasks):
        def load(self, split: str) -> Sequence[Task]:
            first, second, *others = super().load(split)
            return [first, replace(second, id=first.id), *others]

    with pytest.raises(TaskSetError, match="1 ids of pocket's split 'val' are of several tasks"):
        load_tasks(config, Twice(), "val")


def test_a_policy_is_told_apart_by_all_that_it_is_loaded_from(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text("{}")
    (tmp_path / "merges.txt").write_text("a b")
    before = model_hash(str(tmp_path))
    (tmp_path / "README.md").write_text("about it")
    assert model_hash(str(tmp_path)) == before
    (tmp_path / "merges.txt").write_text("")
    assert model_hash(str(tmp_path)) != before
    (tmp_path / "tokenizer.json").write_text("{}")
    fast = model_hash(str(tmp_path))
    (tmp_path / "merges.txt").write_text("a b")  # not read where there is a tokenizer.json
    assert model_hash(str(tmp_path)) == fast
    (tmp_path / "modeling.py").write_text("")
    assert model_hash(str(tmp_path)) != fast


def test_a_reward_that_trains_alone_is_part_of_the_identity() -> None:
    def of(*settings: str) -> Any:
        config = load_config("cpu", None, settings, agent="reference_sql")
        return identity(config, PocketTasks(), [], [], "m", "cpu")

    trained = "reward.training=executes"
    assert "reward_training" not in of()
    assert of(trained)["reward_training"] == {"reward": "executes/1", "options": {}}
    with_rows = of(trained, "reward.training_options.rows=true")
    assert with_rows["reward_training"]["options"] == {"rows": True}
    for key in ("reward", "reward_options"):
        assert of(trained)[key] == of()[key]
    config = load_config("cpu", None, [trained], agent="reference_sql")
    evaluation = identity(config, PocketTasks(), [], [], "m", "cpu", "eval")
    assert "reward_training" not in evaluation  # an evaluation trains nothing


def test_an_engines_variables_are_part_of_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("VLLM_"):
            monkeypatch.delenv(name)
    config = load_config("cpu", agent="reference_sql")

    def of(device: str, model: str = "m") -> Any:
        return identity(config, PocketTasks(), [], [], model, device)

    monkeypatch.setenv("VLLM_API_KEY", "secret")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    assert "engine_variables" not in of("cuda")
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    assert of("cuda")["engine_variables"] == {"VLLM_USE_V2_MODEL_RUNNER": "1"}
    assert "engine_variables" not in of("cpu"), "there is no vLLM"
    assert "engine_variables" not in of("cuda", Endpoint("http://localhost:1/v1", "m").label)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["reward.training=execute"], "'execute'.*'executes'"),
        (
            ["reward.training=executes", "reward.training_options.row=true"],
            r"reward\.training_options.*row",
        ),
        (["reward.training_options.rows=true"], "needs the reward that has them"),
        (["reward.training=executes", "train.credit=turn"], r"set train\.credit=shared"),
    ],
)
def test_a_reward_that_trains_is_checked_before_a_run(settings: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check(load_config("cpu", None, settings, agent="reference_sql"))


def test_the_tools_that_a_policy_is_told_of_are_part_of_the_identity() -> None:
    config = load_config("cpu", agent="reference_tools")
    tasks, of = make_task_set(config).load("val")[:2], environment("sql")
    found = identity(config, PocketTasks(), [], tasks, "m", "cpu")["tools"]
    assert found == tools_hash(of, tasks, {}) and "tools" not in identity(
        load_config("cpu", agent="reference_sql"), PocketTasks(), [], tasks, "m", "cpu"
    )
    (tool,) = of.tools
    described = SimpleNamespace(
        payload=of.payload,
        tools_for=lambda _: (replace(tool, description=f"{tool.description} Never call it."),),
    )
    assert tools_hash(described, tasks, {}) != found  # type: ignore[arg-type]
    own = SimpleNamespace(
        payload=lambda task, limits: {"id": task.id}, tools_for=lambda payload: of.tools
    )
    assert tools_hash(own, tasks, {}) == found  # type: ignore[arg-type]
    trained = [replace(tasks[0], id="other", data={**tasks[0].data, "tool": "another"})]
    assert identity(config, PocketTasks(), trained, tasks, "m", "cpu")["tools"] != found, (
        "the tools of train count, too"
    )
