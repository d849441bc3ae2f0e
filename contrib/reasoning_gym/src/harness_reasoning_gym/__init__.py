"""reasoning_gym as a task set: generated questions, answered in words, graded by its rules."""

from __future__ import annotations

from harness import EnvironmentSpec, PolicyCatalogueSpec, RewardSpec, TaskSetSpec, hookimpl

HARNESS_API = 1


@hookimpl
def harness_environments() -> list[EnvironmentSpec]:
    return [
        EnvironmentSpec(
            "no_tools",
            "harness_reasoning_gym.environment:NoTools",
            "no tools: questions that need reasoning only",
        )
    ]


@hookimpl
def harness_tasks() -> list[TaskSetSpec]:
    return [
        TaskSetSpec(
            "reasoning_gym",
            "harness_reasoning_gym.tasks:ReasoningGymTasks",
            "generated puzzles of reasoning_gym (task.options.dataset=NAME)",
            environment="no_tools",
            presets=(("cpu", "reasoning-gym"), ("cuda", "reasoning-gym"), ("npu", "reasoning-gym")),
        )
    ]


@hookimpl
def harness_rewards() -> list[RewardSpec]:
    return [
        RewardSpec(
            "reasoning_gym",
            "harness_reasoning_gym.reward:ReasoningGym",
            "the data set's own grade of the text between <answer> and </answer>",
            graded=True,
        )
    ]


@hookimpl
def harness_policies() -> list[PolicyCatalogueSpec]:
    return [
        PolicyCatalogueSpec(
            "reasoning_gym", "harness_reasoning_gym:catalogue.yaml", "two kinds of puzzles"
        ),
    ]
