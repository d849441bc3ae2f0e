"""Tasksets of verifiers: loaded, run and scored in the environment where verifiers is installed."""

from __future__ import annotations

from harness import EnvironmentSpec, RewardSpec, TaskSetSpec, hookimpl

HARNESS_API = 1


@hookimpl
def harness_environments() -> list[EnvironmentSpec]:
    return [
        EnvironmentSpec(
            "verifiers",
            "harness_verifiers.environment:VerifiersEnvironment",
            "the tools of a taskset of verifiers",
        )
    ]


@hookimpl
def harness_tasks() -> list[TaskSetSpec]:
    return [
        TaskSetSpec(
            "verifiers",
            "harness_verifiers.tasks:VerifiersTasks",
            "tasksets of verifiers (task.options.taskset=NAME), installed in a separate environment",
            splits=("train", "val", "all"),
            environment="verifiers",
        )
    ]


@hookimpl
def harness_rewards() -> list[RewardSpec]:
    return [
        RewardSpec(
            "verifiers",
            "harness_verifiers.reward:Verifiers",
            "the weighted sum of the taskset's own rewards, on a trace rebuilt from the attempt",
            graded=True,
            ranged=True,
        )
    ]
