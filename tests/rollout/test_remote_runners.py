"""Runners that join a run from elsewhere: real `harness eval` and `harness runner` processes over HTTP."""

from __future__ import annotations

import contextlib
import json
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.errors import ConfigError
from harness.mock_model.server import ReceivedRequest, Reply
from harness.rollout.remote_runners import FILE_NAME, FIRST_NUMBER, LOST_S, Invitation, watch_joined
from harness.testing.fixtures import StartServer
from sides import wait_for


@contextlib.contextmanager
def started(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "harness", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def slow(request: ReceivedRequest) -> Reply | str:
    time.sleep(0.2)
    return "```sql\nSELECT 1\n```"


@pytest.mark.slow
@pytest.mark.timeout(580)
def test_a_run_without_runners_is_worked_off_by_joined_ones_through_the_death_of_one(
    tmp_path: Path, scripted_server: StartServer
) -> None:
    server = scripted_server(slow, token_ids=False)
    evaluation = started(
        *(
            "eval",
            "--plugin",
            "reference_sql",
            "--endpoint",
            server.base_url,
            "--limit",
            "24",
            "--json",
        ),
        *("--set", "rollout.runners=0", "--set", "rollout.concurrency=8", "--set", "max_turns=1"),
        *("--runs-dir", tmp_path),
    )
    with evaluation as run:
        file = wait_for(lambda: next(tmp_path.glob(f"*/{FILE_NAME}"), None))
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        with started("runner", "--join", file.parent, "--runners", "1") as joined:
            wait_for(lambda: server.requests)
            (worker,) = psutil.Process(joined.pid).children()
            worker.kill()  # under its rollouts; the joined command starts another and hands them back
            output, errors = run.communicate(timeout=300)
            assert run.returncode == 0, errors
            assert "harness runner --join" in errors
            runner_output = joined.communicate(timeout=60)[1]
            assert joined.returncode == 0 and "has ended" in runner_output
    record = json.loads(output)
    assert record["result"]["scored"] == 24 and set(record["result"]["outcomes"]) == {"ok"}
    assert not file.exists()


def test_a_file_that_is_no_invitation_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run to join"):
        Invitation.read(tmp_path)
    (tmp_path / FILE_NAME).write_text("{}")
    with pytest.raises(ConfigError, match="not the join file"):
        Invitation.read(tmp_path)
    Invitation("r", "reference_sql", "0", "http://x", "http://x", "k", 1, 1.0).write(
        tmp_path / FILE_NAME
    )
    with pytest.raises(ConfigError, match="is of harness 0"):
        Invitation.read(tmp_path)


@pytest.mark.parametrize("fields", [{"version": "9.9", "new_field": 1}, {"version": "9.9"}])
def test_a_run_of_another_version_is_refused_by_its_version(
    tmp_path: Path, fields: dict[str, object]
) -> None:
    (tmp_path / FILE_NAME).write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match=r"is of harness 9\.9, this is "):
        Invitation.read(tmp_path)
    with pytest.raises(ConfigError, match=r"http://store is of harness 9\.9, this is "):
        Invitation.of(fields, "http://store")
    with pytest.raises(ConfigError, match="http://store is not the join file of a run"):
        Invitation.of({"new_field": 1}, "http://store")


async def test_the_rollouts_of_a_silent_machine_go_back_to_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import asyncio

    from agentlightning.types import EnqueueRolloutRequest, RolloutConfig

    from harness.rollout import remote_runners
    from harness_agentlightning_queue.queue import LightningQueue
    from harness_agentlightning_queue.store import RunStore

    monkeypatch.setattr(remote_runners, "LOST_S", 0.2)
    assert LOST_S > 30  # three of agentlightning's heartbeats
    store = RunStore(thread_safe=True)
    config = RolloutConfig(max_attempts=2, retry_condition=["unresponsive"])
    await store.enqueue_many_rollouts(
        [EnqueueRolloutRequest(input={}, mode="train", config=config)]
    )
    gone = f"Worker-{FIRST_NUMBER + 7}"
    (taken,) = await store.dequeue_many_rollouts(limit=1, worker_id=gone)
    watching = asyncio.create_task(watch_joined(LightningQueue(store)))
    try:
        for _ in range(100):
            await asyncio.sleep(0.05)
            again = await store.dequeue_many_rollouts(
                limit=1, worker_id=f"Worker-{FIRST_NUMBER + 8}"
            )
            if again:
                break
        (retried,) = again
        assert retried.rollout_id == taken.rollout_id and retried.attempt.sequence_id == 2
        first = (await store.query_attempts(taken.rollout_id))[0]
        assert first.status == "unresponsive" and "silent" in first.metadata["lost"]
    finally:
        watching.cancel()
