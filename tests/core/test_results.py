"""The run folder survives kills, resumes and half-written lines."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from harness.errors import EnvironmentProblem, RunFailed, UserError
from harness.records import Attempt, CallFailure, Task, Transition, Verdict
from harness.runs.episodes import episode_row
from harness.runs.folder import RowLog, RunFolder
from harness.runs.monitor import Follower, Monitor
from harness.runs.record_types import columns
from harness.runs.replies import remarks_on, replies_of
from harness.runs.rows import Episode
from harness.runs.schema import RunRecord
from harness.runs.tables import conclude, step_rows, write_tables
from harness.runs.training_signal import least_to_train, mixed_groups, share_mixed, why_flat
from harness.testing.calls import transition
from harness.util.formatting import unread


def row(
    step: int,
    reward: float | None,
    phase: str = "train",
    outcome: str = "ok",
    calls: tuple[Transition, ...] = (),
    failures: tuple[CallFailure, ...] = (),
    **changes: object,
) -> dict[str, object]:
    task = Task("t1", "pocket", "val", "Q?", "SELECT 1", "db", "easy")
    attempt = Attempt("r", "a", outcome, "", "SELECT 1", calls, failures, (), 0.0, 1.0)  # type: ignore[arg-type]
    base = episode_row(
        task,
        attempt,
        Verdict(reward, "why"),
        reward_version="x/1",
        agent="x",
        phase=phase,
        step=step,
        session=0,
        paid={},
        used_reward=reward if phase == "train" else None,
    )
    return {**base, **changes}


def failure(code: str) -> CallFailure:
    return CallFailure(1, "assistant", code, "agent", 400, "refused", 0.0, 0.1)


def test_rows_are_on_disk_at_once_and_a_half_line_is_ignored(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x y/z")
    assert "/" not in folder.id and " " not in folder.id
    log = RowLog(folder, "episodes")
    log.add([row(1, 1.0), row(1, None)])
    with next(folder.logs.glob("episodes-*.jsonl")).open("ab") as file:
        file.write(b'{"step": 2, "pha')
    assert [r["reward"] for r in folder.rows("episodes")] == [1.0, None]
    write_tables(folder)
    table = pq.read_table(folder.path / "episodes.parquet")
    assert table.column_names == list(columns(Episode))
    assert table["reward"].to_pylist() == [1.0, None]  # unscored is null, not zero


def test_steps_that_are_done_again_are_set_aside(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    RowLog(folder, "episodes").add([row(1, 1.0), row(2, 0.0), row(3, 0.0)])
    folder.drop_after(2)
    assert [r["step"] for r in folder.rows("episodes")] == [1, 2]
    assert len(list(folder.logs.glob("superseded-*"))) == 1


def test_a_validation_that_is_done_again_is_set_aside_too(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    RowLog(folder, "episodes").add(
        [row(0, 1.0, "val"), row(2, 1.0), row(2, 0.0, "val"), row(3, 0.0)]
    )
    folder.drop_after(2, validation=True)
    assert [(r["phase"], r["step"]) for r in folder.rows("episodes")] == [("val", 0), ("train", 2)]


def test_a_run_is_held_by_one_process(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    with (
        folder.locked(),
        pytest.raises(UserError, match="still running in another process"),
        folder.locked(),
    ):
        pass
    with folder.locked():
        pass


def test_means_leave_the_unscored_out() -> None:
    rows = [row(1, 1.0), row(1, 0.0), row(1, None, outcome="timeout")]
    (figures,) = step_rows([{"step": 1, "data": {"step_s": 2.0}}], rows)
    assert figures["rollout/reward"] == 0.5
    assert figures["rollout/outcome/timeout"] == 1
    assert figures["step_s"] == 2.0


def test_rewrites_are_counted_as_help_and_harm() -> None:
    rows = [
        row(1, 1.0, first_reward=0.0, rewrites=1),
        row(1, 0.0, first_reward=1.0, rewrites=1),
        row(1, 1.0),
    ]
    (figures,) = step_rows([], rows)
    assert (figures["rollout/rewrites_helped"], figures["rollout/rewrites_hurt"]) == (1, 1)


def test_silent_failures_stop_the_run(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    monitor = Monitor(folder, 2, {"train": 4, "val": 2}, 0.5)
    log = RowLog(folder, "episodes")
    log.add(
        [
            row(1, 1.0),
            row(1, None, outcome="endpoint_error"),
            row(1, None, outcome="endpoint_error"),
        ]
    )
    assert monitor.poll().failures == {"endpoint_error": 2}
    log.add([row(1, None)])
    with pytest.raises(RunFailed, match=r"3 of 4 rollouts.*endpoint_error 2, unscored 1"):
        monitor.poll()


def test_a_reward_that_always_fails_stops_the_run_by_name(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    monitor = Monitor(folder, 2, {"train": 4, "val": 2}, 0.5)
    fault = "reward judge of harness-judge raised ValueError: no key"
    lost = [
        row(1, None, outcome="reward_error", detail=fault, reward_reason=fault) for _ in range(3)
    ]
    RowLog(folder, "episodes").add([row(1, None, outcome="endpoint_error"), *lost])
    with pytest.raises(RunFailed) as caught:
        monitor.poll()
    assert "reward_error 3, endpoint_error 1" in str(
        caught.value
    ) and f"Most often: {fault}. " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_failures_before_a_resumption_do_not_stop_it_again(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    RowLog(folder, "episodes").add([row(1, None), row(1, None), row(1, None), row(1, 1.0)])
    monitor = Monitor(folder, 2, {"train": 4, "val": 2}, 0.5)
    assert monitor.poll().failures == {"unscored": 3}
    RowLog(folder, "episodes").add([row(2, None), row(2, None), row(2, None)])
    with pytest.raises(RunFailed, match=r"step 2 \(train\): 3 of 4"):
        monitor.poll()


def test_progress_follows_the_rows(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    monitor = Monitor(folder, 4, {"train": 2, "val": 2}, 0.5)
    RowLog(folder, "episodes").add(
        [row(0, 1.0, "val"), row(0, 0.0, "val"), row(1, 1.0), row(1, 1.0)]
    )
    RowLog(folder, "steps").add([{"step": 1, "data": {"step_s": 3.0}}])
    progress = monitor.poll()
    assert progress.val_curve == {0: 0.5}
    assert (progress.step, progress.reward, progress.remaining_s) == (1, 1.0, 9.0)


def test_a_step_without_rollouts_and_the_validation_after_it_can_arrive_together(
    tmp_path: Path,
) -> None:
    folder = RunFolder.create(tmp_path, "x")
    follower = Follower(folder, 2, {"train": 4, "val": 2})
    RowLog(folder, "steps").add([{"step": 2, "data": {"step_s": 3.0, "taught_calls": 4.0}}])
    RowLog(folder, "episodes").add([row(2, 1.0, "val")])
    progress = follower.look()
    assert (progress.phase, progress.done, progress.expected) == ("validating after step 2", 1, 2)
    assert progress.validating == 2 and progress.remaining_s is not None


def test_a_step_without_rollouts_ends_a_validation_with_missing_rows(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    follower = Follower(folder, 2, {"train": 4, "val": 2})
    RowLog(folder, "steps").add([{"step": 1, "data": {"step_s": 3.0, "taught_calls": 4.0}}])
    RowLog(folder, "episodes").add([row(0, 1.0, "val")])
    progress = follower.look()
    assert (progress.phase, progress.validating, progress.remaining_s) == ("step 1", None, 3.0)


def test_the_reward_is_that_of_the_newest_step_in_whatever_order_files_have_them(
    tmp_path: Path,
) -> None:
    folder = RunFolder.create(tmp_path, "x")
    RowLog(folder, "episodes").add([row(1, 1.0), row(1, 1.0), row(2, 1.0), row(2, 0.0)])
    RowLog(folder, "steps").add(
        [{"step": 1, "data": {"step_s": 3.0}}, {"step": 2, "data": {"step_s": 3.0}}]
    )
    RowLog(folder, "steps").add([{"step": 1, "data": {"step_s": 3.0}}])
    progress = Monitor(folder, 4, {"train": 2, "val": 2}, 0.5).progress
    assert (progress.step, progress.reward) == (2, 0.5)


def test_a_tool_call_left_in_the_text_is_counted() -> None:
    replies = ('<tool_call>\n{"name": "query"', "It is 3 < 4.", '[TOOL_CALLS][{"name": "query"}]')
    calls = tuple(transition("assistant", response_text=text) for text in replies)
    assert row(0, 1.0, "val", calls=calls)["unread_calls"] == 2


def test_what_replies_say_of_their_servers_is_counted_and_remarked_on() -> None:
    thinking = transition("assistant", response_text="", text_elsewhere="reasoning_content")
    limited = transition(
        "assistant", rate_limits=2, rate_limit_s=1.5, served_model="a", response_text=" "
    )
    rows = [
        row(0, 0.0, "val", calls=(thinking, limited)),
        row(0, 0.0, "val", calls=(transition("assistant", response_text="", served_model="b"),)),
    ]
    found = replies_of(rows)  # type: ignore[arg-type]
    assert found == {
        "replies": 3,
        "empty": 3,
        "text_elsewhere": {"reasoning_content": 1},
        "rate_limits": 2,
        "rate_limit_s": 1.5,
        "served_models": {"a": 1, "b": 1},
        "failures": {},
    }
    empty, limit, models = remarks_on({"replies": found})
    assert empty.startswith("all 3 replies were empty; their text was in `reasoning_content`")
    assert "2 times" in limit and "1.5 s" in limit and "a (1), b (1)" in models
    good = [row(0, 1.0, "val", calls=(transition("assistant", served_model="a"),))]
    assert replies_of(good) is None and not list(remarks_on({}))  # type: ignore[arg-type]


def test_calls_without_an_answer_that_an_agent_survived_are_remarked_on() -> None:
    long, dropped = failure("prompt_too_long"), failure("upstream_dropped")
    rows = [
        row(0, 0.0, "val", calls=(transition("assistant"),), failures=(dropped, long, long)),
        row(0, None, "val", outcome="endpoint_error", failures=(dropped,)),
    ]
    found = replies_of(rows)  # type: ignore[arg-type]
    assert found is not None
    assert found["failures"] == {"prompt_too_long": 2, "upstream_dropped": 1}
    (remark,) = remarks_on({"replies": found})
    assert remark.startswith("3 of 4 calls had no answer")
    assert "prompt_too_long (2), upstream_dropped (1)" in remark
    assert "sampling.max_prompt_tokens" in remark


def test_few_calls_left_in_the_text_are_the_models_own_affair() -> None:
    assert unread(2, 20) == unread(0, 0) == ""
    assert unread(3, 20).startswith("in 3 of 20 rollouts ")


def test_tool_calls_that_no_server_reads_are_warned_of_once(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    monitor = Monitor(folder, 4, {"train": 4, "val": 2}, 0.5)
    log = RowLog(folder, "episodes")
    log.add([row(0, 0.0, "val", unread_calls=3)])
    assert not monitor.poll().warning
    log.add([row(0, 0.0, "val")])
    warning = monitor.poll().warning
    assert warning.startswith(
        "validating after step 0: in 1 of 2 rollouts the model wrote a tool call"
    )
    log.add([row(1, 1.0, unread_calls=1)] * 4)
    assert monitor.poll().warning == warning


def test_calls_are_counted_by_whether_the_server_read_them() -> None:
    parsed = {"tool_calls": ({"function": {"name": "add", "arguments": "{}"}},) * 2}
    calls = (
        transition("assistant", offered_tools=("add",), response_text="", **parsed),
        transition("assistant", offered_tools=("add",), response_text='{"name": "add"}'),
        transition("assistant", response_text='{"name": "add"}'),
    )
    made = row(0, 1.0, "val", calls=calls)
    counts = [made[name] for name in ("calls_with_tools", "parsed_calls", "unread_calls")]
    assert counts == [2, 2, 1]
    assert columns(Episode)["parsed_calls"] == "int64"
    episodes = [made, row(0, 1.0, "val")]
    (figures,) = step_rows([], episodes)  # type: ignore[arg-type]
    assert (figures["val/parsed_calls"], figures["val/calls_with_tools"]) == (2.0, 2.0)


def test_tools_that_are_never_called_are_warned_of_after_the_first_validation(
    tmp_path: Path,
) -> None:
    folder = RunFolder.create(tmp_path, "x")
    monitor = Monitor(folder, 4, {"train": 4, "val": 200}, 0.5)
    log = RowLog(folder, "episodes")
    offering = {"calls_with_tools": 1}
    log.add([row(0, 0.0, "val", **offering)] * 198)
    log.add([row(0, 0.0, "val", **offering, unread_calls=1)])
    assert not monitor.poll().warning  # the validation is under way
    log.add([row(0, 0.0, "val", **offering, parsed_calls=1)])
    warning = monitor.poll().warning
    assert warning.startswith(
        "validating after step 0: tools were offered in 200 rollouts, a call was parsed"
    )
    assert "in 1, and in 1 a reply looks like a call" in warning


def test_an_agent_that_calls_its_tools_is_not_warned_of(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    monitor = Monitor(folder, 4, {"train": 4, "val": 20}, 0.5)
    log = RowLog(folder, "episodes")
    log.add([row(0, 0.0, "val", calls_with_tools=1, parsed_calls=1)] * 19)
    log.add([row(0, 0.0, "val", calls_with_tools=1, unread_calls=1)])
    assert not monitor.poll().warning


def test_an_agent_that_fails_itself_is_warned_of_and_stopped_where_it_never_asks(
    tmp_path: Path,
) -> None:
    folder = RunFolder.create(tmp_path, "x")
    monitor = Monitor(folder, 4, {"train": 4, "val": 20}, 0.5)
    log = RowLog(folder, "episodes")
    failed = {"outcome": "agent_error", "reward_reason": "agent_error: ValueError: my\nbug"}
    log.add([row(0, 0.0, "val", **failed)] * 2 + [row(0, 1.0, "val")] * 18)
    assert not monitor.poll().warning  # a tenth
    asked = (transition("write_query"),)
    log.add([row(1, 0.0, **failed, calls=asked), *[row(1, 0.0, **failed)] * 3])
    assert monitor.poll().warning == (
        "step 1: the agent itself ended 4 of 4 rollouts, which count as wrong. "
        "Most often: agent_error: ValueError: my bug."
    )
    log.add([row(2, 0.0, **failed)] * 4)
    with pytest.raises(
        RunFailed,
        match=r"ended all 4 rollouts before the model answered once.* ValueError: my bug\.",
    ):
        monitor.poll()
    assert Monitor(folder, 4, {"train": 4, "val": 20}, 0.5).poll().warning == ""


def test_steps_in_a_row_without_a_signal_are_remarked_once(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    monitor = Monitor(folder, 9, {"train": 4, "val": 2}, 0.5)
    remarks, shares = [], []
    for step in range(1, 7):
        mixed = 1.0 if step == 5 else 0.0
        groups = [("a", mixed), ("a", 0.0), ("b", 1.0), ("b", 1.0)]
        RowLog(folder, "episodes").add([row(step, reward, task_id=task) for task, reward in groups])
        RowLog(folder, "steps").add([{"step": step, "data": {"step_s": 3.0}}])
        progress = monitor.poll()
        remarks.append(progress.remark[:13])
        shares.append(progress.mixed)
        assert (progress.done, progress.expected) == (4, 4)
    assert remarks == ["", "", "steps 1 to 3:", "steps 1 to 3:", "", ""]
    assert shares == [0, 0, 0, 0, 0.5, 0]
    assert Monitor(folder, 9, {"train": 4, "val": 2}, 0.5).progress.phase == "starting"


def test_a_group_teaches_by_the_rewards_that_train(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    monitor = Monitor(folder, 9, {"train": 4, "val": 2}, 0.5)
    # One group differs in its verdicts only, the other in what trains only; None trains nothing.
    a, b = {"task_id": "a", "used_reward": 1.0}, {"task_id": "b"}
    rows = [row(1, 1.0, **a), row(1, 0.0, **a), row(1, 1.0, **b, used_reward=0.0), row(1, 1.0, **b)]
    rows.append(row(1, 0.0, **b, used_reward=None))
    RowLog(folder, "episodes").add(rows)
    RowLog(folder, "steps").add([{"step": 1, "data": {"step_s": 3.0}}])
    assert monitor.poll().mixed == 0.5


def test_where_the_best_are_trained_a_group_teaches_with_one_that_is_good_enough(
    tmp_path: Path,
) -> None:
    folder = RunFolder.create(tmp_path, "x")
    monitor = Monitor(folder, 9, {"train": 4, "val": 2}, 0.5, least=0.5)
    remarks, shares = [], []
    for step in range(1, 6):
        best = (
            1.0 if step == 1 else 0.4
        )  # all right alike, then all below the threshold, though they differ
        groups = [("a", best), ("a", best), ("b", 0.4), ("b", 0.0)]
        RowLog(folder, "episodes").add([row(step, reward, task_id=task) for task, reward in groups])
        RowLog(folder, "steps").add([{"step": step, "data": {"step_s": 3.0}}])
        progress = monitor.poll()
        remarks.append(progress.remark.partition(", so")[0])
        shares.append(progress.mixed)
    assert shares == [0.5, 0, 0, 0, 0]
    why = "no rollout has a reward of 0.5 or more (train.rejection_threshold)"
    assert remarks == ["", "", "", f"steps 2 to 4: {why}", f"steps 2 to 4: {why}"]


@pytest.mark.parametrize(
    ("algorithm", "rewards", "share", "why"),
    [
        ("grpo", [1.0, 1.0], 0.0, "All 2 training rollouts have reward 1, the highest."),
        ("rejection", [1.0, 1.0], 1.0, ""),
        (
            "rejection",
            [0.4, 0.0],
            0.0,
            "No training rollout has a reward of 0.5 or more (train.rejection_threshold).",
        ),
        ("grpo", [0.4, 0.0], 1.0, ""),
    ],
)
def test_what_a_training_can_learn_from_depends_on_its_algorithm(
    algorithm: str, rewards: list[float], share: float, why: str
) -> None:
    least = least_to_train({"algorithm": algorithm, "rejection_threshold": 0.5})
    counted = mixed_groups(((1, "a", reward) for reward in rewards), least)
    found = share_mixed(counted.values())
    assert found == share
    assert (
        why_flat([(reward, "") for reward in rewards], (0, 1), least).strip() if not found else ""
    ) == why


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        RunFolder.open(tmp_path)


def test_text_that_no_encoding_has_is_a_row_like_any_other(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    RowLog(folder, "episodes").add(
        [row(1, 1.0), row(1, 0.0, answer="SELECT '\ud83d'"), row(1, 1.0)]
    )
    assert [r["answer"] for r in folder.rows("episodes")] == ["SELECT 1", "SELECT '?'", "SELECT 1"]
    write_tables(folder)
    assert pq.read_table(folder.path / "episodes.parquet")["answer"].to_pylist()[1] == "SELECT '?'"


def test_a_full_disk_leaves_whole_rows_and_the_run_s_end(
    small_disk: Callable[[str], Path], fill: Callable[..., Path]
) -> None:
    disk = small_disk("2m")
    folder = RunFolder.create(disk, "x")
    folder.reserve(2**20)
    folder.write({"id": folder.id, "status": "running"})
    log = RowLog(folder, "episodes")
    log.add([row(1, 1.0)])
    filler = fill(disk, leave=8192)
    with pytest.raises(OSError, match="No space left"):
        log.add([row(1, 0.0, answer="x" * 50_000)])
    assert [r["reward"] for r in folder.rows("episodes")] == [1.0]  # no half of a row
    fill(disk)
    ended = {
        "id": folder.id,
        "status": "failed",
        "reason": "No space left on device",
        "x": "y" * 200_000,
    }
    conclude(folder, ended)
    assert json.loads((folder.path / "run.json").read_text())["status"] == "failed"

    filler.unlink()
    log.add([row(2, 0.5)])
    assert [r["reward"] for r in folder.rows("episodes")] == [1.0, 0.5]
    assert conclude(folder, ended | {"status": "finished"}) == ""
    assert pq.read_table(folder.path / "episodes.parquet")["reward"].to_pylist() == [1.0, 0.5]


def test_tables_that_do_not_fit_are_no_finished_run(
    small_disk: Callable[[str], Path], fill: Callable[..., Path]
) -> None:
    disk = small_disk("2m")
    folder = RunFolder.create(disk, "x")
    folder.reserve(2**20)
    for _ in range(20):
        RowLog(folder, "episodes").add([row(1, 1.0, answer=secrets.token_hex(30_000))])
    fill(disk)
    assert "No space left" in conclude(folder, {"id": folder.id, "status": "finished"})
    record = json.loads((folder.path / "run.json").read_text())
    assert record["status"] == "failed" and "No space left" in record["reason"]
    assert not list(folder.path.glob("*.tmp"))


def test_what_says_finished_has_its_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.create(tmp_path, "x")
    RowLog(folder, "episodes").add([row(1, 1.0)])
    tables = []
    write = RunFolder.write

    def noting(self: RunFolder, record: RunRecord) -> None:
        tables.append((self.path / "episodes.parquet").exists())
        write(self, record)

    monkeypatch.setattr(RunFolder, "write", noting)
    conclude(folder, {"id": folder.id, "status": "finished"})
    assert tables == [True]


def test_rows_that_make_no_table_leave_a_record_that_says_so(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    RowLog(folder, "episodes").add([row(1, 1.0) | {"step": "one"}])
    with pytest.raises(Exception, match="one"):
        conclude(folder, {"id": folder.id, "status": "finished"})
    record = json.loads((folder.path / "run.json").read_text())
    assert record["status"] == "failed" and "cannot be written" in record["reason"]


def test_a_run_for_which_there_is_no_room_is_not_started(small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("2m")
    folder = RunFolder.create(disk, "x")
    with pytest.raises(
        EnvironmentProblem, match=r"has 2 MiB of disk left and the run needs 64 MiB"
    ):
        folder.reserve(64 * 2**20)


def test_listing_runs_loads_neither_configuration_nor_tables() -> None:
    heavy = "{'harness.config', 'pydantic', 'pandas', 'polars'}"
    code = f"import sys, harness.runs.reading; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
