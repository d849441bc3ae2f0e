"""The contract of a reward of queries: `harness.RewardContract` with tasks on a small database.

from harness_sql import SQLRewardContract

class TestReward(SQLRewardContract):
    reward = "my_reward"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from harness.records import Task
from harness.testing.data_contract import RewardContract
from harness_sql.self_correcting.scenarios import build_database
from harness_sql.sqlite.environment import DATABASE

GOLDS = (
    "SELECT name FROM singer",
    "SELECT count(*), avg(age) FROM singer WHERE country = 'Chile'",
    "SELECT title FROM concert ORDER BY year DESC LIMIT 3",
    'SELECT "Straße" FROM "Verkäufe"',
)
"""Gold queries on the database of the parity scenarios."""


class SQLRewardContract(RewardContract):
    """`RewardContract` for rewards of gold queries. Set `reward` to the reward's name."""

    @pytest.fixture(scope="class")
    @classmethod
    def tasks(cls, tmp_path_factory: pytest.TempPathFactory) -> Sequence[Task]:
        """Return tasks with gold queries."""
        database = str(build_database(tmp_path_factory.mktemp("reward")))
        tasks = []
        for number, gold in enumerate(GOLDS):
            data = {DATABASE: database}
            tasks.append(Task(f"t{number}", "contract", "val", "?", gold, "parity", data=data))
        return tasks

    @pytest.fixture(scope="class")
    @classmethod
    def unscorable(
        cls, tasks: Sequence[Task], tmp_path_factory: pytest.TempPathFactory
    ) -> Sequence[Task]:
        """Return one task with a failing gold query and one with a missing database."""
        nowhere = str(tmp_path_factory.mktemp("unscorable") / "no.sqlite")
        return [replace(tasks[0], gold="SELECT nope"), replace(tasks[0], data={DATABASE: nowhere})]
