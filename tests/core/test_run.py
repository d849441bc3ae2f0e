"""A run's record is finished however the run ends."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
import pytest

from harness import timeline
from harness.config import load_config
from harness.errors import ConfigError, RunFailed
from harness.plugins import make_task_set
from harness.record import identity
from harness.results.folder import RowLog, RunFolder
from harness.run import LiveRun, recorded
from harness.trainers.order import validation_order


def test_a_trace_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for trace in (tmp_path, tmp_path / "no" / "trace.json", tmp_path / "file" / "trace.json"):
        with pytest.raises(ConfigError, match="--trace-start .*cannot write there"), timeline.recorded(trace):
            pass


@pytest.mark.parametrize("kind", ["train", "eval"])
@pytest.mark.parametrize(
    ("error", "raised", "status", "reason"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt, "interrupted", "interrupted by the user"),
        (RunFailed("the gateway died"), RunFailed, "failed", "the gateway died"),
        (ValueError("oh"), ValueError, "failed", "ValueError: oh"),
        (OSError(errno.ENOSPC, "No space left"), RunFailed, "failed", "OSError: [Errno 28] No space left"),
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
    run = LiveRun(config, folder, task_set, [], validation_order(task_set.load("val"), config), "m", "cpu")
    with pytest.raises(raised), recorded(run, kind, lambda record: {"scored": 1}):
        assert folder.read()["status"] == "running"
        RowLog(folder, "steps").add([{"step": 1, "data": {"step_s": 1.0}}])
        raise error
    record = folder.read()
    (launch,) = record["launches"]
    assert (record["status"], record["reason"]) == (launch["status"], launch["reason"]) == (status, reason)
    assert launch["ended"] and record["result"]["scored"] == 1 and record["result"]["data_changed"] == []
    assert pq.read_table(folder.path / "steps.parquet")["step_s"].to_pylist() == [1.0]


@pytest.mark.parametrize(("agent", "tools"), [("reference_sql", False), ("reference_tools", True)])
def test_runs_say_where_calls_of_a_dialogue_are_one_row(agent: str, tools: bool) -> None:
    def said(*overrides: str) -> dict[str, Any]:
        config = load_config("cpu", None, overrides, agent=agent)
        return identity(config, make_task_set(config), [], [], "m", "cpu")["train"]

    assert ("merged" in said(), "merge_calls" in said()) == (tools, False)
    apart = said("train.merge_calls=false")
    assert apart == said("train.micro_batch_size=3", "train.merge_calls=false") and "merged" not in apart
    assert said() == apart | ({"merged": True} if tools else {})
