"""A policy's folder with demonstrations: what reads them, and what refuses to leave them out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.cli.serve import serving
from harness.config import load_config
from harness.errors import ConfigError, UserError
from harness.policies import resolve
from harness.policies.demonstrations import FILE, demonstrations_in
from harness.policies.roles import answerers
from harness.runs.folder import RunFolder
from harness.training.data import load_data
from harness.training.evaluation import evaluate
from harness.training.provenance import model_hash
from harness.util.endpoints import Endpoint

PAIR = [{"role": "user", "content": "One?"}, {"role": "assistant", "content": "1"}]
OTHER = [{"role": "user", "content": "Two?"}, {"role": "assistant", "content": "2"}]


def policy_with(folder: Path, demonstrations: Any, version: int = 2, tasks: Any = None) -> Path:
    """Return a policy with demonstrations; without `tasks` each has a task of its own."""
    target = folder / "policy"
    shutil.copytree(resolve("pocket-sql"), target)
    if tasks is None:
        by_role = demonstrations if isinstance(demonstrations, dict) else {}
        tasks = {}
        for role, pairs in by_role.items():
            tasks[role] = [f"{role}/{number}" for number in range(len(pairs))]
    data = {
        "version": version,
        "trainer": "any",
        "demonstrations": demonstrations,
        "tasks": tasks,
    }
    (target / FILE).write_text(json.dumps(data))
    return target


def test_they_are_read_by_role_and_are_no_part_of_the_weights(tmp_path: Path) -> None:
    policy = policy_with(tmp_path, {"write_query": [PAIR], "check_query": []})
    assert demonstrations_in(policy).by_role == {"write_query": [PAIR]}
    assert model_hash(str(policy)) == model_hash(resolve("pocket-sql"))


def test_a_task_never_sees_its_own_answer(tmp_path: Path) -> None:
    shown = {"write_query": [PAIR, OTHER], "check_query": [PAIR]}
    tasks = {"write_query": ["one", "two"], "check_query": ["one"]}
    found = demonstrations_in(policy_with(tmp_path, shown, tasks=tasks))
    assert found.for_task("one") == {"write_query": [OTHER]}
    assert found.for_task("two") == {"write_query": [PAIR], "check_query": [PAIR]}
    assert found.for_task("three") == found.by_role == shown


@pytest.mark.parametrize("tasks", [{}, {"write_query": []}, {"write_query": [1]}, ["one"]])
def test_demonstrations_of_unknown_tasks_are_refused(tmp_path: Path, tasks: Any) -> None:
    with pytest.raises(ConfigError, match="is damaged: `tasks`"):
        demonstrations_in(policy_with(tmp_path, {"write_query": [PAIR]}, tasks=tasks))


@pytest.mark.parametrize(
    ("demonstrations", "version", "message"),
    [
        ({}, 1, "has version 1, and this harness reads 2"),
        ([], 2, "is damaged"),
        ({"write_query": [PAIR[:1]]}, 2, "is damaged"),
        ({"write_query": [PAIR[::-1]]}, 2, "is damaged"),
    ],
)
def test_other_files_are_refused(
    tmp_path: Path, demonstrations: Any, version: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        demonstrations_in(policy_with(tmp_path, demonstrations, version))


def test_a_damaged_file_is_no_folder_without_demonstrations(tmp_path: Path) -> None:
    policy = policy_with(tmp_path, {})
    (policy / FILE).write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        demonstrations_in(policy)


def test_nothing_serves_trains_or_mixes_in_the_bare_model(tmp_path: Path) -> None:
    policy = policy_with(tmp_path, {"write_query": [PAIR]})
    config = load_config("cpu", None, ["device=cpu"], agent="reference_sql")
    with (
        pytest.raises(ConfigError, match="serves a model without them"),
        serving(str(policy), config, key="key"),
    ):
        pass
    trained = load_config("cpu", None, [f"policy.path={policy}"], agent="reference_sql")
    with pytest.raises(ConfigError, match="Train the policy that it was made from"):
        load_data(trained)
    settings = [f"roles.check_query.policy={policy}"]
    with pytest.raises(ConfigError, match="^roles.check_query: .*without demonstrations"):
        answerers(load_config("cpu", None, settings, agent="reference_sql"))


def test_an_agent_that_can_use_none_of_them_is_refused(tmp_path: Path) -> None:
    policy = policy_with(tmp_path, {"planner": [PAIR]})
    config = load_config("cpu", None, ["device=cpu"], agent="reference_sql")
    folder = RunFolder.create(tmp_path, "eval")
    endpoint = Endpoint("http://127.0.0.1:9/v1", "m")
    with pytest.raises(ConfigError, match="demonstrations for the roles planner"):
        evaluate(config, folder, endpoint, lambda done, of: None, str(policy))
    assert not (folder.path / "run.json").exists()
