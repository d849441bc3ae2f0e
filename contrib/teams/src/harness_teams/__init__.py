"""Teams: a planner, workers with tools of their own and a critic; questions over two databases."""

from __future__ import annotations

from harness import (
    AgentSpec,
    CommandSpec,
    EnvironmentSpec,
    ProgramSpec,
    RewardSpec,
    TaskSetSpec,
    hookimpl,
)
from harness_teams.names import ROLES

HARNESS_API = 1


@hookimpl
def harness_agents() -> list[AgentSpec]:
    return [
        AgentSpec(
            "reference_team",
            "harness_teams.team:ReferenceTeam",
            "plain Python: a planner, workers and a critic",
            roles=ROLES,
            frameworks=("httpx",),
            program="team",
        )
    ]


@hookimpl
def harness_programs() -> list[ProgramSpec]:
    return [
        ProgramSpec(
            "team",
            "harness_teams.program:TeamProgram",
            "a planner hands tasks to workers with their own tools; a critic checks the answer",
        )
    ]


@hookimpl
def harness_environments() -> list[EnvironmentSpec]:
    return [
        EnvironmentSpec(
            "split_sql",
            "harness_teams.environment:SplitEnvironment",
            "several read-only SQLite databases, each with its own tool",
        )
    ]


@hookimpl
def harness_tasks() -> list[TaskSetSpec]:
    return [
        TaskSetSpec(
            "pocket_split",
            "harness_teams.tasks:PocketSplitTasks",
            "generated questions over two databases, one per tool",
            splits=("train", "val", "test"),
            reserved=("test",),
            environment="split_sql",
            presets=(("cpu", "pocket-split"), ("cuda", "pocket-split"), ("npu", "pocket-split")),
        )
    ]


@hookimpl
def harness_rewards() -> list[RewardSpec]:
    return [
        RewardSpec(
            "stated",
            "harness_teams.reward:Stated",
            "1 if an answer states all numbers and names of the gold and no others, else 0",
        )
    ]


@hookimpl
def harness_commands() -> list[CommandSpec]:
    return [
        CommandSpec(
            "contribution", "harness_teams.cli:app", "Measure what training each role is worth."
        ),
    ]
