"""The built-in environment keeps the contract that other environments are held to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from harness.records import Task
from harness.testing.environment_contract import EnvironmentContract
from harness_sql.self_correcting.scenarios import build_database
from harness_sql.sqlite.environment import DATABASE, SQLEnvironment


class TestSQL(EnvironmentContract):
    environment = "sql"
    calls = (("query_database", {"sql": "SELECT name FROM singer"}),)

    @pytest.fixture(scope="class")
    @classmethod
    def tasks(cls, tmp_path_factory: pytest.TempPathFactory) -> Sequence[Task]:
        database = str(build_database(tmp_path_factory.mktemp("sql")))
        return [
            Task(
                "t",
                "contract",
                "val",
                "?",
                "SELECT count(*) FROM singer",
                "parity",
                data={DATABASE: database},
            )
        ]

    @pytest.mark.parametrize(
        ("one", "other", "same"),
        [
            ("SELECT 1, 'a'", "select 1.0 AS x, 'a' AS y", True),
            ("SELECT 1 UNION SELECT 2", "SELECT 2 UNION ALL SELECT 1", True),
            ("SELECT 1", "SELECT 2", False),
            ("SELECT 2 UNION SELECT 1 ORDER BY 1 DESC", "SELECT 1 UNION SELECT 2", False),
            ("There are  Two.", "there are two", True),
        ],
    )
    def test_answers_mean_what_they_give(
        self, tasks: Sequence[Task], one: str, other: str, same: bool
    ) -> None:
        first, second = (
            asyncio.run(SQLEnvironment().meaning(tasks[0], answer)) for answer in (one, other)
        )
        assert first is not None and (first == second) == same
        assert (
            asyncio.run(SQLEnvironment().meaning(tasks[0], "SELECT nothing FROM nowhere")) is None
        )
