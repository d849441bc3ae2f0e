"""harness plugin arithmetic. This module is read to list plugins, so it imports nothing else."""

from __future__ import annotations

from harness import EnvironmentSpec, RewardSpec, TaskSetSpec, hookimpl

HARNESS_API = 1


@hookimpl
def harness_environments() -> list[EnvironmentSpec]:
    return [
        EnvironmentSpec(
            "calculator", "harness_arithmetic.calculator:Calculator", "one tool: a calculator"
        )
    ]


@hookimpl
def harness_tasks() -> list[TaskSetSpec]:
    return [
        TaskSetSpec(
            "arithmetic",
            "harness_arithmetic.tasks:ArithmeticTasks",
            "sums in words, made from a seed",
            environment="calculator",
        )
    ]


@hookimpl
def harness_rewards() -> list[RewardSpec]:
    return [
        RewardSpec(
            "arithmetic",
            "harness_arithmetic.reward:Arithmetic",
            "1 for the number, less the further away, a little for having calculated",
            parts=("near", "calculated"),
            graded=True,
        )
    ]
