"""The shadow check finds what certificates cannot: agents that are the reference but for one fault.

Rollouts are made by the real gateway, a real database and a scripted model; the check runs in its own process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.contracts.programs import Scenario
from harness.contracts.toolbox import Agent
from harness.gateway.server import GatewayServer
from harness.mock_model.completion import Reply
from harness.parity.comparison import compare
from harness.parity.recorder import record
from harness.parity.shadow_check import Checker, ShadowCheck, nothing_checked
from harness.records import Attempt
from harness.rollout.request import RolloutRequest
from harness.rollout.shadow_queue import ShadowQueue, chosen
from harness.runs.schema import Shadow
from harness.testing.stage import staged
from harness_sql.self_correcting.prompts import APPROVED, REJECTED
from harness_sql.self_correcting.reference import ReferenceSQL

from .bad_agents import (
    AddsASystemLine,
    ChangesAfterRollouts,
    DropsStop,
    NeverAcceptsNothing,
    Retries,
)

PROGRAM = "self_correcting_sql"


YES, NO = Reply(APPROVED), Reply(REJECTED)


def sql(query: str) -> Reply:
    return Reply(f"```sql\n{query}\n```")


def scene(name: str, *replies: Reply, **more: Any) -> Scenario:
    return Scenario(name, "", replies, "How many singers are there?", **more)


APPROVED_AT_ONCE = scene("approved", sql("SELECT 1"), YES)
EMPTY = scene("empty", sql("SELECT name FROM singer WHERE age > 99"), YES, sql("SELECT 2"), YES)
NULL = scene("null", sql("SELECT NULL"), YES, sql("SELECT 2"), YES)
ZERO = scene("zero", sql("SELECT 0"), YES, sql("SELECT 2"), YES)
FAILED_ONCE = scene("failed", sql("SELECT 1"), Reply.failure(500), YES)
THREE_TURNS = scene("three", sql("A"), NO, sql("B"), NO, sql("A"), YES)


async def rollouts(
    agent: Agent, scenes: Sequence[Scenario], **changes: Any
) -> list[tuple[RolloutRequest, Attempt]]:
    """Attempts of one agent, one after another, through the real gateway."""
    made = []
    with GatewayServer() as gateway, tempfile.TemporaryDirectory() as folder:
        for number, scenario in enumerate(scenes):
            async with staged(PROGRAM, scenario, gateway, Path(folder)) as stage:
                request = stage.request(**changes)
                attempt = await stage.attempt(agent, f"rollout-{number}", request)
                made.append((request, attempt))
    return made


def checked(tmp_path: Path, made: Sequence[tuple[RolloutRequest, Attempt]]) -> Shadow:
    """What a check in its own process says of rollouts."""
    check = ShadowCheck(tmp_path / "shadow", "reference_sql", None)
    check.start()
    spool = ShadowQueue(tmp_path / "shadow")
    for request, attempt in made:
        spool.add(request, attempt, "scripted", "val", 3)
    return check.stop()


def shadow_of(tmp_path: Path, agent: Agent, *scenes: Scenario, **changes: Any) -> Shadow:
    return checked(tmp_path, asyncio.run(rollouts(agent, scenes, **changes)))


def test_the_reference_passes_its_own_check(tmp_path: Path) -> None:
    scenes = [APPROVED_AT_ONCE, EMPTY, NULL, ZERO, FAILED_ONCE, THREE_TURNS]
    result = shadow_of(tmp_path, ReferenceSQL(), *scenes)
    assert result["checked"] == result["identical"] == len(scenes)
    assert result["unchecked"] == 0 and result["first_difference"] is None
    assert not (tmp_path / "shadow").exists()


@pytest.mark.parametrize("scenario", [EMPTY, NULL, ZERO])
def test_an_agent_that_never_accepts_nothing_is_found(tmp_path: Path, scenario: Scenario) -> None:
    result = shadow_of(tmp_path, NeverAcceptsNothing(), APPROVED_AT_ONCE, scenario)
    assert (result["checked"], result["identical"]) == (2, 1)
    first = result["first_difference"]
    assert first is not None
    assert first["rollout_id"] == "rollout-1"
    assert first["place"] == "call 2 (rewrite_query)"
    assert first["expected"] == "'no further call'"
    assert (first["phase"], first["step"]) == ("val", 3)


def test_an_agent_that_changes_after_fifty_rollouts_is_found(tmp_path: Path) -> None:
    result = shadow_of(tmp_path, ChangesAfterRollouts(), *[APPROVED_AT_ONCE] * 53)
    assert (result["checked"], result["identical"]) == (53, 50)
    first = result["first_difference"]
    assert first is not None
    assert first["rollout_id"] == "rollout-50"
    assert (first["place"], first["expected"]) == ("tool call after call 0", "'SELECT 1'")


def test_an_agent_that_retries_is_found(tmp_path: Path) -> None:
    made = asyncio.run(rollouts(Retries(), [FAILED_ONCE]))
    assert made[0][1].outcome == "ok", "the retry hides the failure from the outcome"
    first = checked(tmp_path, made)["first_difference"]
    assert first is not None and first["place"] == "call 2 (check_query)"


def test_an_agent_that_drops_a_stop_parameter_is_found(tmp_path: Path) -> None:
    """The gateway forces the run's `stop`, so the model's words do not change: the request does."""
    sampling = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 96, "stop": ["\n\n"]}
    made = asyncio.run(rollouts(DropsStop(), [APPROVED_AT_ONCE], sampling=sampling))
    (_, attempt), *_ = made
    assert attempt.transitions[0].sampling["stop"] == ["\n\n"]
    first = checked(tmp_path, made)["first_difference"]
    assert first is not None and first["place"] == "call 0 (write_query) stop"
    assert first["got"] == "'not sent'"


def test_an_agent_that_adds_a_system_line_in_the_third_turn_is_found(tmp_path: Path) -> None:
    result = shadow_of(tmp_path, AddsASystemLine(), APPROVED_AT_ONCE, THREE_TURNS)
    first = result["first_difference"]
    assert first is not None
    assert first["place"].startswith("call 4 (rewrite_query) messages[0].content at character ")
    assert "Think step" in first["got"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "found"),
    [
        (NeverAcceptsNothing, False),
        (ChangesAfterRollouts, False),
        (Retries, True),
        (DropsStop, False),  # no scenario, and no run, sends the parameter
        (AddsASystemLine, True),
    ],
)
def test_which_of_them_a_certificate_finds(agent: type[ReferenceSQL], found: bool) -> None:
    reference = asyncio.run(record(ReferenceSQL(), PROGRAM, plays=["alone"]))
    recordings = asyncio.run(record(agent(), PROGRAM, plays=["alone"]))
    assert compare("bad", recordings, reference).passed is not found


def test_a_check_ends_when_its_run_was_killed_before_the_check_had_started(tmp_path: Path) -> None:
    run = (
        "import os, sys; from pathlib import Path; from harness.parity.shadow_check import ShadowCheck\n"
        "check = ShadowCheck(Path(sys.argv[1]), 'reference_sql', None); check.start()\n"
        "print(check.pid, flush=True); os._exit(0)"
    )
    command = [sys.executable, "-c", run, str(tmp_path / "shadow")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    deadline = time.monotonic() + 60
    with suppress(psutil.NoSuchProcess):
        check = psutil.Process(int(done.stdout))
        while check.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                check.kill()
                pytest.fail("the check outlives its run")
            time.sleep(0.1)


def test_a_check_that_was_killed_says_what_it_left_and_does_not_raise(tmp_path: Path) -> None:
    made = asyncio.run(rollouts(ReferenceSQL(), [APPROVED_AT_ONCE]))
    check = ShadowCheck(tmp_path / "shadow", "reference_sql", nothing_checked())
    check.start()
    assert check.pid is not None
    os.kill(check.pid, signal.SIGKILL)
    ShadowQueue(tmp_path / "shadow").add(*made[0], "scripted", "val", 0)
    result = check.stop()
    assert result["unchecked"] == 1
    assert result["reason"] == "the check ended with status -9"


def test_a_check_that_is_stuck_is_ended(tmp_path: Path) -> None:
    made = asyncio.run(rollouts(ReferenceSQL(), [APPROVED_AT_ONCE]))
    check = ShadowCheck(tmp_path / "shadow", "reference_sql", None)
    check.start()
    assert check.pid is not None
    os.kill(check.pid, signal.SIGSTOP)
    ShadowQueue(tmp_path / "shadow").add(*made[0], "scripted", "val", 0)
    result = check.stop(wait_s=0.5)
    assert result["unchecked"] == 1 and "was not done" in result["reason"]


def test_a_resumed_run_keeps_what_its_earlier_launches_found(tmp_path: Path) -> None:
    made = asyncio.run(rollouts(ReferenceSQL(), [APPROVED_AT_ONCE]))
    known: Shadow = {**nothing_checked(), "checked": 7, "identical": 6}
    check = ShadowCheck(tmp_path / "shadow", "reference_sql", known)
    check.start()
    ShadowQueue(tmp_path / "shadow").add(*made[0], "scripted", "train", 0)
    result = check.stop()
    assert (result["checked"], result["identical"]) == (8, 7)


def test_a_rollout_that_cannot_be_read_is_not_checked(tmp_path: Path) -> None:
    (tmp_path / "1-1.json").write_text("{}")
    checker = Checker(tmp_path, ReferenceSQL())
    asyncio.run(checker.run(lambda: True))
    assert (checker.result["checked"], checker.result["unchecked"]) == (0, 1)
    assert checker.result["reason"].startswith("KeyError")


def test_every_validation_and_a_seeded_share_of_training_are_chosen() -> None:
    names = [f"task/{number}" for number in range(1000)]
    assert all(chosen(1, 0.0, "val", 0, name) for name in names)
    picked = [name for name in names if chosen(1, 0.1, "train", 4, name)]
    assert 60 < len(picked) < 140
    assert picked == [name for name in names if chosen(1, 0.1, "train", 4, name)]
    assert picked != [name for name in names if chosen(2, 0.1, "train", 4, name)]
    assert not any(chosen(1, 0.0, "train", 4, name) for name in names)
