"""The built-in environment keeps the contract that other environments are held to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.environments.sql.environment import DATABASE
from harness.programs.self_correcting_sql.scenarios import build_database
from harness.records import Task
from harness.testing.environment_contract import EnvironmentContract


class TestSQL(EnvironmentContract):
    environment = "sql"
    calls = (("query_database", {"sql": "SELECT name FROM singer"}),)

    @pytest.fixture(scope="class")
    @classmethod
    def tasks(cls, tmp_path_factory: pytest.TempPathFactory) -> Sequence[Task]:
        database = str(build_database(tmp_path_factory.mktemp("sql")))
        return [Task("t", "contract", "val", "?", "SELECT count(*) FROM singer", "parity", data={DATABASE: database})]
