"""The parts keep the contracts of harness."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness import EnvironmentContract, RewardContract, Task, TaskSetContract


def _tasks() -> Sequence[Task]:
    from harness_arithmetic.tasks import ArithmeticTasks

    return ArithmeticTasks().load("val")


class TestEnvironment(EnvironmentContract):
    environment = "calculator"
    calls = (("calculate", {"expression": "2 * (3 + 4) - 1 / 4"}),)

    @pytest.fixture(scope="class")
    @classmethod
    def tasks(cls) -> Sequence[Task]:
        return _tasks()


class TestTasks(TaskSetContract):
    task_set = "arithmetic"


class TestReward(RewardContract):
    reward = "arithmetic"

    @pytest.fixture(scope="class")
    @classmethod
    def tasks(cls) -> Sequence[Task]:
        return _tasks()[:3]

    @pytest.fixture(scope="class")
    @classmethod
    def unscorable(cls) -> Sequence[Task]:
        return []
