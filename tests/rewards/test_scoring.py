"""A reward is asked a bounded number of times at once, and no fault of it is ever a verdict."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pyarrow.parquet as pq
import pytest

from harness.config import Config, load_config
from harness.contracts.hookspecs import RewardSpec, hookimpl
from harness.errors import PluginError, RewardError, RunFailed
from harness.plugins import Registry, make_reward, reward_spec
from harness.records import AGENT_OUTCOMES, Attempt, Outcome, Task, Verdict
from harness.rollout.scoring import Scorer
from harness.runs.folder import RunFolder
from harness.testing.fixtures import StartServer
from harness.training.evaluation import evaluate
from harness.training.record import run_record
from harness.util.endpoints import Endpoint
from harness_sql.sqlite.environment import DATABASE

TASK = Task("t", "pocket", "val", "?", "SELECT 1", "db", data={DATABASE: "/db"})
ATTEMPT = Attempt("r", "a", "ok", "", "SELECT 1", (), (), (), 0.0, 0.0)
Offer = Callable[..., Config]


class Judge:
    """Returns, raises or awaits what the test put into `answer`."""

    version = "examiner/3"
    answer: Any = Verdict(0.5, "half")
    built = 0
    running = most = 0

    def __init__(self) -> None:
        type(self).built += 1

    async def score(self, task: Task, attempt: Attempt) -> Verdict:
        type(self).running += 1
        type(self).most = max(self.running, self.most)
        try:
            answer = type(self).answer
            made: Verdict = await answer(attempt) if callable(answer) else answer
            return made
        finally:
            type(self).running -= 1


class Plain:
    version = "examiner/1"

    def score(self, task: Task, attempt: Attempt) -> Verdict:
        return Verdict(1.0, "")


class Distribution:
    name = "harness-judge"
    version = "1.0"


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Offers `examiner` through a distribution `harness-judge` and returns a configuration that names it."""

    def install(
        answer: Any = None, part: type = Judge, settings: tuple[str, ...] = (), **declared: Any
    ) -> Config:
        for name, value in (("built", 0), ("running", 0), ("most", 0)):
            monkeypatch.setattr(Judge, name, value)
        if answer is not None:
            monkeypatch.setattr(Judge, "answer", answer)
        spec = RewardSpec("examiner", f"{__name__}:{part.__name__}", "", **declared)
        module = ModuleType("judge_plugin")
        vars(module).update({"HARNESS_API": 1, "harness_rewards": hookimpl(lambda: [spec])})
        monkeypatch.setitem(sys.modules, "judge_plugin", module)
        point = EntryPoint("judge", "judge_plugin", "harness")
        vars(point)["dist"] = Distribution()
        names = ("sql", "agentlightning_queue")
        bundled = [next(iter(entry_points(group="harness", name=name))) for name in names]
        found = Registry([*bundled, point])
        assert not (problems := [one.problem for one in found.states if one.problem]), problems
        monkeypatch.setattr("harness.plugins.registry", lambda: found)
        return load_config("cpu", None, ["reward.name=examiner", *settings], agent="reference_sql")

    return install


def score(config: Config, attempt: Attempt = ATTEMPT) -> Verdict:
    async def scored() -> Verdict:
        return await Scorer(config, roles=["write_query", "check_query"]).score(TASK, attempt)

    return asyncio.run(scored())


async def raises(attempt: Attempt) -> Verdict:
    raise ValueError("two\nlines")


async def leaves(attempt: Attempt) -> Verdict:
    raise SystemExit(3)


async def cancels(attempt: Attempt) -> Verdict:
    raise asyncio.CancelledError


async def hangs(attempt: Attempt) -> Verdict:
    await asyncio.sleep(60)
    return Verdict(1.0, "late")


async def blocks(attempt: Attempt) -> Verdict:
    time.sleep(0.3)
    return Verdict(1.0, "late")


async def never_ends(attempt: Attempt) -> Verdict:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (raises, "raised ValueError: two lines"),
        (leaves, "raised SystemExit: 3"),
        (cancels, "raised CancelledError: of its own making"),
        (hangs, "gave no verdict within 0.2 s (reward.timeout_s)"),
        (0.5, "returned float 0.5, not a Verdict"),
        (Verdict("1", "x"), "returned value '1', which is not a number"),  # type: ignore[arg-type]
        (Verdict(True, "x"), "returned value True, which is not a number"),
        (Verdict(float("nan"), "x"), "returned value nan, which is not finite"),
        (Verdict(float("inf"), "x"), "returned value inf, which is not finite"),
        (Verdict(10**400, "x"), "returned int too large to convert to float"),
        (Verdict(1.5, "x"), "returned value 1.5, outside of its range 0 to 1"),
        (Verdict(-0.1, "x"), "returned value -0.1, outside of its range 0 to 1"),
        (Verdict(1.0, None), "returned reason None and flags (), which are not a text and several"),  # type: ignore[arg-type]
        (
            Verdict(1.0, "x", flags="odd"),
            "returned reason 'x' and flags 'odd', which are not a text and several",
        ),  # type: ignore[arg-type]
        (Verdict(1.0, "x", {"a": float("nan")}), "returned part 'a' nan, which is not finite"),
        (
            Verdict(1.0, "x", {1: 1.0}),
            "returned parts {1: 1.0}, not a mapping from names to numbers",
        ),  # type: ignore[dict-item]
        (
            Verdict(1.0, "x", by_role={"write": 2.0}),
            "returned value of role 'write' 2, outside of its range 0 to 1",
        ),
        (
            Verdict(1.0, "x", by_role={"write": 1.0}),
            "returned a value of role 'write', but the agent has write_query, check_query",
        ),
        (
            Verdict(1.0, "x", executed="yes"),  # type: ignore[arg-type]
            "returned executed 'yes', which is not True, False or None",
        ),
        (blocks, "gave no verdict within 0.2 s (reward.timeout_s)"),
        (never_ends, "gave no verdict within 0.2 s (reward.timeout_s)"),
    ],
)
def test_a_fault_is_no_verdict_and_names_the_reward_and_its_distribution(
    answer: Any, fault: str, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.util.deadlines.CLOSE_GRACE_S", 0.1)
    with pytest.raises(RewardError) as caught:
        score(offer(answer, settings=("reward.timeout_s=0.2",)))
    assert str(caught.value) == f"reward examiner of harness-judge {fault}"


@pytest.mark.parametrize("outcome", sorted({*get_args(Outcome)} - {"ok"}))
@pytest.mark.parametrize("low", [0.0, -1.0])
def test_an_attempt_that_did_not_end_well_is_not_shown_to_the_reward(
    outcome: Outcome, low: float, offer: Offer
) -> None:
    async def judge() -> tuple[Attempt, Verdict]:
        return await Scorer(config).judge(
            TASK, replace(ATTEMPT, outcome=outcome, detail="why", answer=None)
        )

    config = offer(raises, low=low)
    attempt, verdict = asyncio.run(judge())
    assert attempt.outcome == outcome and verdict.reason == f"{outcome}: why"
    assert verdict.value == (low if outcome in AGENT_OUTCOMES else None)


def test_a_dry_run_reaches_the_verdicts_of_a_run(offer: Offer) -> None:
    from harness.cli.dev import _judged

    config = offer(Verdict(1.0, "x", by_role={"write": 1.0}))
    ((attempt, verdict),) = asyncio.run(_judged(config, [(TASK, ATTEMPT)]))
    assert attempt.outcome == "reward_error" and verdict.value is None
    assert "a value of role 'write', but the agent has write_query, check_query" in verdict.reason


def test_a_verdict_that_counts_is_passed_on_in_plain_numbers(offer: Offer) -> None:
    verdict = Verdict(Fraction(1, 2), "half", {"style": 3}, ("odd",), {"write_query": 1})  # type: ignore[arg-type]
    got = score(offer(verdict))
    assert (
        got == Verdict(0.5, "half", {"style": 3.0}, ("odd",), {"write_query": 1.0})
        and type(got.value) is float
    )
    assert score(offer(Verdict(None, "gold fails"))).value is None


def test_range_and_parts_are_those_of_the_spec(offer: Offer) -> None:
    assert (
        score(offer(Verdict(-2.0, "x", {"style": 9.0}), low=-3, high=2, parts=("style",))).value
        == -2.0
    )
    with pytest.raises(RewardError, match=r"returned value 0.5, outside of its range 1 to 2"):
        score(offer(Verdict(0.5, "x"), low=1, high=2))
    with pytest.raises(RewardError, match=r"returned part 'stile', but declares style, brevity"):
        score(offer(Verdict(0.5, "x", {"stile": 1.0}), parts=("style", "brevity")))
    broken: list[tuple[dict[str, Any], str]] = [
        ({"low": 1.0}, "the range of 'examiner' is 1.0 to 1.0"),
        ({"low": "0"}, "the range of 'examiner' is '0' to 1.0"),
        ({"high": float("inf")}, "the range of 'examiner' is 0.0 to inf"),
        ({"parts": ("a b",)}, "parts of 'examiner'"),
    ]
    for declared, why in broken:
        with pytest.raises(AssertionError, match=why):
            offer(**declared)


def test_no_more_verdicts_at_once_than_configured(offer: Offer) -> None:
    async def slow(attempt: Attempt) -> Verdict:
        await asyncio.sleep(0.01)
        return Verdict(float(attempt.rollout_id) / 100, "")

    config = offer(slow, settings=("reward.concurrency=3",))

    async def all_at_once() -> list[Verdict]:
        scorer = Scorer(config)
        return await asyncio.gather(
            *(scorer.score(TASK, replace(ATTEMPT, rollout_id=f"{n}")) for n in range(20))
        )

    assert [verdict.value for verdict in asyncio.run(all_at_once())] == [n / 100 for n in range(20)]
    assert Judge.most == 3


def test_scoring_sql_leaves_the_event_loop_free(tmp_path: Path) -> None:
    from harness_sql.self_correcting.scenarios import build_database

    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    )
    task = replace(TASK, data={DATABASE: str(build_database(tmp_path))})

    async def ticks_meanwhile() -> int:
        scoring = asyncio.ensure_future(
            Scorer(load_config("cpu", None, ["reward.options.timeout_s=1"])).score(
                task, replace(ATTEMPT, answer=endless)
            )
        )
        ticks = 0
        while not scoring.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert scoring.result().value == 0.0
        return ticks

    assert asyncio.run(ticks_meanwhile()) > 20


def test_a_score_that_is_not_async_is_refused_with_what_to_write(offer: Offer) -> None:
    with pytest.raises(
        PluginError, match=r"^reward 'examiner' must have `async def score\(self, task, attempt\)`"
    ) as caught:
        make_reward(offer(part=Plain))
    assert "asyncio.to_thread" in str(caught.value) and "\n" not in str(caught.value)


def test_the_record_of_a_run_reads_the_version_and_builds_nothing(
    offer: Offer, tmp_path: Path
) -> None:
    from harness_sql.tasks.pocket import PocketTasks

    config = offer()
    record = run_record(
        config, RunFolder.create(tmp_path, "x"), PocketTasks(), [], [], "policy", "cpu", kind="eval"
    )
    assert record["identity"]["reward"] == "examiner/3" and Judge.built == 0


def measured(config: Config, folder: RunFolder, server: Any) -> dict[str, Any]:
    config.task.val_limit = 6
    return evaluate(config, folder, Endpoint(server.base_url, "scripted"), lambda done, total: None)


@pytest.mark.slow
def test_a_reward_that_always_fails_ends_the_run_in_one_line_that_names_it(
    offer: Offer, tmp_path: Path, scripted_server: StartServer
) -> None:
    folder = RunFolder.create(tmp_path, "x")
    with pytest.raises(RunFailed) as caught:
        measured(offer(raises), folder, scripted_server(lambda request: "```sql\nSELECT 1\n```"))
    message = str(caught.value)
    assert "max_failed_share" in message and "\n" not in message
    assert "reward examiner of harness-judge raised ValueError: two lines" in message
    rows = pq.read_table(folder.path / "episodes.parquet").to_pylist()
    assert len(rows) >= 4
    assert {(row["outcome"], row["reward"], row["used_reward"]) for row in rows} == {
        ("reward_error", None, None)
    }
    assert {row["detail"] for row in rows} == {
        "reward examiner of harness-judge raised ValueError: two lines"
    }
    assert {row["answer"] for row in rows} == {"SELECT 1"}  # what the agent did is kept


@pytest.mark.slow
def test_one_fault_among_verdicts_leaves_out_its_rollout_alone(
    offer: Offer, tmp_path: Path, scripted_server: StartServer
) -> None:
    asked: list[str] = []

    async def sometimes(attempt: Attempt) -> Verdict:
        asked.append(attempt.rollout_id)
        if len(asked) == 1:
            raise ConnectionError("the judge is busy")
        return Verdict(0.25, "graded", {"style": 0.5, "facts": 0.0}, (), {"write_query": 0.75})

    folder = RunFolder.create(tmp_path, "x")
    record = measured(
        offer(sometimes), folder, scripted_server(lambda request: "```sql\nSELECT 1\n```")
    )
    assert record["result"]["accuracy"] == 0.25
    assert record["result"]["outcomes"] == {"ok": 5, "reward_error": 1}
    assert record["result"]["agent_failed"] == 0
    rows = {
        row["rollout_id"]: row
        for row in pq.read_table(folder.path / "episodes.parquet").to_pylist()
    }
    lost = rows.pop(asked[0])
    assert (lost["reward"], lost["reward_parts"], lost["reward_by_role"]) == (None, None, None)
    for row in rows.values():
        assert json.loads(row["reward_parts"]) == {"style": 0.5, "facts": 0.0}
        assert json.loads(row["reward_by_role"]) == {"write_query": 0.75}
        assert row["reward_version"] == "examiner/3"


def test_a_fault_over_the_first_query_is_a_fault(offer: Offer) -> None:
    from harness.rollout.session import Session

    async def dislikes_the_first(attempt: Attempt) -> Verdict:
        if attempt.answer == "SELECT 0":
            raise ValueError("no")
        return Verdict(1.0, "fine")

    session = object.__new__(Session)
    session._scorer = Scorer(offer(dislikes_the_first))
    attempt, verdict, worth = asyncio.run(session._score(TASK, ATTEMPT, ["SELECT 0"]))
    assert (attempt.outcome, verdict.value, worth) == ("reward_error", None, {})


def test_a_late_reward_does_not_hold_the_others_up(offer: Offer) -> None:
    async def first_hangs(attempt: Attempt) -> Verdict:
        return await hangs(attempt) if attempt.rollout_id == "0" else Verdict(1.0, "")

    config = offer(first_hangs, settings=("reward.timeout_s=0.3", "reward.concurrency=1"))

    async def in_turn() -> list[Any]:
        scorer = Scorer(config)
        asked = (scorer.score(TASK, replace(ATTEMPT, rollout_id=f"{n}")) for n in range(3))
        return await asyncio.gather(*asked, return_exceptions=True)

    began = time.monotonic()
    late, *others = asyncio.run(in_turn())
    assert isinstance(late, RewardError) and [one.value for one in others] == [1.0, 1.0]
    assert time.monotonic() - began < 5


def test_execution_accuracy_declares_no_parts() -> None:
    spec = reward_spec("execution_accuracy")
    assert (spec.low, spec.high, spec.parts) == (0.0, 1.0, ())
