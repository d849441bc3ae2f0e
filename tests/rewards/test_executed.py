"""Rewards report which answers could be executed, and tables use it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from judging import attempt, task

from harness.compare.answers import has_no_result
from harness.compare.measures import measure
from harness.config import load_config
from harness.mock_model.server import Reply
from harness.plugins import make_reward
from harness.records import Attempt, Task, Verdict
from harness.runs.folder import RunFolder
from harness.runs.reading import read_run
from harness.testing.fixtures import StartServer
from harness.training.evaluation import evaluate
from harness.util.endpoints import Endpoint
from harness_sql.self_correcting.scenarios import build_database
from harness_sql.sqlite.environment import DATABASE

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
FAILING = (
    "SELECT nope FROM singer",
    "DROP TABLE singer",
    "",
    ENDLESS,
    "SELECT 1 --" + 20_000 * "-",
)
RUNNING = ("SELECT count(*) FROM singer", "SELECT name FROM singer", "SELECT 1 WHERE 0")
REWARDS = {
    "execution_accuracy": {},
    "executes": {},
    "soft_f1": {},
    "bird_accuracy": {},
    "bird_soft_f1": {},
    "bird_r_ves": {"runs": 1},
}
LONG = FAILING[-1]


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Task:
    database = str(build_database(tmp_path_factory.mktemp("sql")))
    return task("SELECT count(*) FROM singer", "How many?", **{DATABASE: database})


def verdict(name: str, options: dict[str, Any], question: Task, of: Attempt) -> Verdict:
    config = load_config("cpu", None, [f"reward.name={name}"])
    config.reward.options = options
    found: Verdict = asyncio.run(make_reward(config).score(question, of))
    return found


@pytest.mark.parametrize("name", REWARDS)
def test_every_reward_that_executes_answers_says_whether_they_could_be(
    name: str, counted: Task
) -> None:
    options = {**REWARDS[name], "timeout_s": 0.4}
    for answer in FAILING:
        if name == "executes" and answer == LONG:
            continue  # it has no limit of its own
        found = verdict(name, options, counted, attempt(answer))
        assert found.executed is False and found.value is not None, answer[:60]
    for answer in RUNNING:
        assert verdict(name, options, counted, attempt(answer)).executed is True, answer


@pytest.mark.parametrize("name", REWARDS)
def test_nothing_is_known_of_an_unscored_answer(name: str, counted: Task, tmp_path: Path) -> None:
    gone = replace(counted, data={DATABASE: str(tmp_path / "gone.sqlite")})
    found = verdict(name, REWARDS[name], gone, attempt("SELECT 1"))
    assert found.value is None and found.executed is None


@pytest.mark.parametrize(
    ("parts", "answer", "ran", "executed"),
    [
        (("executes", "facts"), "SELECT nope", None, False),
        (("executes", "facts"), "SELECT 1", None, True),
        (("executes", "execution_accuracy"), "SELECT nope", True, False),
        (("facts",), "SELECT nope", None, None),
    ],
)
def test_a_sum_of_rewards_knows_what_its_parts_know(
    parts: tuple[str, ...], answer: str, ran: bool | None, executed: bool | None, counted: Task
) -> None:
    options = {"parts": {part: {"weight": 0.5} for part in parts}}
    found = verdict("hybrid", options, counted, attempt(answer, ran=ran))
    assert found.value is not None and found.executed is executed


def test_failing_answers_of_an_evaluation_are_counted_whatever_the_reward(
    tmp_path: Path, scripted_server: StartServer
) -> None:
    answers = iter([*FAILING[:3], "SELECT 1", "VALUES (2)", "SELECT 1 WHERE 0"])
    server = scripted_server(lambda request: Reply(f"```sql\n{next(answers)}\n```"))
    settings = ["reward.name=executes", "task.val_limit=6", "max_turns=1", "reward.timeout_s=20"]
    config = load_config("cpu", None, settings, agent="reference_sql")
    folder = RunFolder.create(tmp_path, "executes")
    evaluate(config, folder, Endpoint(server.base_url, "scripted"), lambda done, total: None)
    rows = pq.read_table(folder.path / "episodes.parquet").to_pylist()
    failing = [row["answer"] for row in rows if row["executed"] is False]
    assert len(failing) == 3 and all(row["executed"] is not None for row in rows)
    run = read_run(folder.path)
    assert measure(run)["failures"] == {"answer_fails": 3}
    assert has_no_result(run.episodes).sum() == 3
