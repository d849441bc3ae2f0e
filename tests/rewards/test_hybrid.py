"""`hybrid` adds up parts; by default a tenth for a query that ran, plus the judge."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from judging import attempt, data_of, grades, grading, task

from harness.config import load_config
from harness.errors import ConfigError
from harness.mock_model.server import Reply
from harness.plugins import make_reward, reward_identity, reward_spec
from harness.records import Task, Verdict
from harness.runs.folder import RunFolder
from harness.testing.fixtures import StartServer
from harness.training.evaluation import evaluate
from harness.util.endpoints import Endpoint
from harness.util.paid_calls import spent
from harness_sql.rewards.hybrid import Hybrid
from harness_sql.rewards.judge import CRITERIA
from harness_sql.self_correcting.scenarios import build_database
from harness_sql.sqlite.environment import DATABASE
from harness_sql.testing import SQLRewardContract

TWO = {
    "accuracy": {"reward": "execution_accuracy", "weight": 0.5},
    "soft": {"reward": "soft_f1", "weight": 0.5},
}


class TestContract(SQLRewardContract):
    reward = "hybrid"

    @pytest.fixture(scope="class")
    @classmethod
    def options(cls) -> dict[str, Any]:
        return {"parts": TWO}


@pytest.fixture
def counted(tmp_path: Path) -> Task:
    return task(
        "SELECT count(*) FROM singer", "How many?", **{DATABASE: str(build_database(tmp_path))}
    )


def scored(reward: Any, task: Task, answer: str | None, ran: bool | None = None) -> Verdict:
    verdict: Verdict = asyncio.run(reward.score(task, attempt(answer, ran=ran)))
    return verdict


@pytest.mark.parametrize(
    ("grade", "ran", "value"),
    [
        (0.0, True, 0.1),
        (0.0, False, 0.0),
        (0.6, True, 0.7),
        (0.6, False, 0.6),
        (0.95, True, 1.0),
        (1.0, True, 1.0),
    ],
)
def test_the_default_is_a_tenth_for_a_query_that_ran_plus_the_judge(
    grade: float, ran: bool, value: float, counted: Task, scripted_server: StartServer
) -> None:
    server = scripted_server(grading(lambda data: grade))
    made = Hybrid(judge={"endpoint": server.base_url, "model": "scripted"})
    verdict = scored(made, counted, "There are eight.", ran)
    assert verdict.value == pytest.approx(value)
    assert verdict.parts == pytest.approx(
        {"executes": 0.1 * ran, "judge": grade, **{f"judge.{name}": grade for name in CRITERIA}}
    )


def test_an_empty_answer_pays_for_what_ran_and_does_not_pay_the_judge(
    counted: Task, scripted_server: StartServer
) -> None:
    server = scripted_server([])
    made = Hybrid(judge={"endpoint": server.base_url, "model": "scripted"})
    assert [scored(made, counted, "", ran).value for ran in (True, False)] == [
        0.1,
        0.0,
    ] and not server.requests


def test_a_part_without_a_verdict_leaves_none_and_says_which(
    counted: Task, scripted_server: StartServer
) -> None:
    server = scripted_server(lambda request: Reply.failure(401, "who are you"))
    made = Hybrid(judge={"endpoint": server.base_url, "model": "scripted"})
    verdict = scored(made, counted, "eight", True)
    assert verdict.value is None and not verdict.parts
    assert verdict.reason.startswith("judge: the judge scripted: answers 401")


def test_any_rewards_are_combined_by_their_weights(counted: Task) -> None:
    wrong = "SELECT count(*) FROM concert"
    made = Hybrid(parts=TWO)
    soft = scored(Hybrid(parts={"soft_f1": {}}), counted, wrong).value
    assert soft is not None and 0 < soft < 1
    verdict = scored(made, counted, wrong)
    assert verdict.value == pytest.approx(soft / 2)
    assert verdict.parts["accuracy"] == 0.0 and verdict.parts["soft"] == pytest.approx(soft / 2)
    assert verdict.parts["soft.runs"] == 1.0
    assert scored(made, counted, counted.gold).value == 1.0


def test_what_a_part_refuses_is_refused(counted: Task) -> None:
    assert Hybrid(parts=TWO).refuses(counted) == ""
    refused = Hybrid(parts={"executes": {}, "facts": {}}).refuses(task("Paris"))
    assert refused.startswith("executes: it has no database")


JUDGE = {"endpoint": "http://127.0.0.1:1/v1", "model": "m"}


def identity(**options: Any) -> dict[str, Any]:
    return reward_identity(reward_spec("hybrid"), options, "reward.options")


def test_the_identity_is_that_of_its_parts(tmp_path: Path) -> None:
    first = identity(judge=JUDGE)
    spelled = {
        "executes": {"weight": 0.1},
        "judge": {"options": {**JUDGE, "endpoint": "http://other/v1"}},
    }
    assert first == identity(parts=spelled) and "http" not in json.dumps(first)
    assert (
        first["parts"]["judge"]["reward"] == "judge/1"
        and first["parts"]["judge"]["options"]["model"] == "m"
    )
    assert identity(judge={**JUDGE, "rubric": "Be strict."}) != first
    assert identity(parts={**spelled, "executes": {"weight": 0.2}}) != first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "reward.options.parts.judge.options.endpoint: 'judge' needs this option"),
        ({"parts": {}}, "needs one part at least"),
        ({"parts": TWO, "judge": JUDGE}, "parts or judge, not both"),
        (
            {"parts": {"x": {"reward": "soft_f2"}}},
            "no reward called 'soft_f2'; did you mean 'soft_f1'?",
        ),
        ({"parts": {"facts": {"wieght": 1}}}, "reward.options.parts.facts: 'wieght' is not known"),
        ({"parts": {"facts": {"weight": 0}}}, "reward.options.parts.facts.weight is 0"),
        (
            {"parts": {"facts": {"options": {"x": 1}}}},
            "reward.options.parts.facts.options.x: 'facts' has no option",
        ),
    ],
)
def test_parts_that_are_none_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    config = load_config("cpu", None, ["reward.name=hybrid"])
    config.reward.options = options
    with pytest.raises(Exception) as refused:
        make_reward(config)
    assert isinstance(refused.value, ConfigError) or "called" in str(refused.value)
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.slow
def test_a_run_has_the_parts_in_its_episodes_and_the_judge_paid_once(
    tmp_path: Path, scripted_server: StartServer
) -> None:
    server = scripted_server(lambda request: grades(0.5 if "question" in data_of(request) else 0.0))
    policy = scripted_server(lambda request: "```sql\nSELECT 1\n```")
    options = [
        f"reward.options.judge.endpoint={server.base_url}",
        "reward.options.judge.model=scripted",
    ]
    config = load_config(
        "cpu", None, ["reward.name=hybrid", "task.val_limit=3", *options], agent="reference_sql"
    )
    folder = RunFolder.create(tmp_path, "x")
    result: Any = evaluate(
        config, folder, Endpoint(policy.base_url, "scripted"), lambda done, total: None
    )["result"]
    for row in pq.read_table(folder.path / "episodes.parquet").to_pylist():
        parts = json.loads(row["reward_parts"])
        assert (row["reward"], parts["executes"], parts["judge"], parts["judge.clarity"]) == (
            0.6,
            0.1,
            0.5,
            0.5,
        )
    assert result["reward_cost"] == spent(folder.path / "reward")
    assert result["reward_cost"]["calls"] == len(server.requests) == 3
