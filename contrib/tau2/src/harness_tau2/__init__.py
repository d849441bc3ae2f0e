"""tau2-bench's retail and airline: an agent serves a customer; the final database is judged."""

from __future__ import annotations

from harness import (
    CommandSpec,
    EnvironmentSpec,
    PreparedDataSpec,
    RewardSpec,
    TaskSetSpec,
    hookimpl,
)

HARNESS_API = 1


@hookimpl
def harness_environments() -> list[EnvironmentSpec]:
    return [
        EnvironmentSpec(
            "tau2",
            "harness_tau2.environment:Tau2Environment",
            "the tools and databases of tau2-bench",
        )
    ]


@hookimpl
def harness_tasks() -> list[TaskSetSpec]:
    return [
        TaskSetSpec(
            "tau2",
            "harness_tau2.tasks:Tau2Tasks",
            "customers of a shop and of an airline, of tau2-bench (fetched by `harness data tau2`)",
            splits=("train", "val", "base"),
            environment="tau2",
            presets=(("cpu", "tau2"), ("cuda", "tau2"), ("npu", "tau2")),
        )
    ]


@hookimpl
def harness_rewards() -> list[RewardSpec]:
    return [
        RewardSpec(
            "tau2",
            "harness_tau2.reward:Tau2Reward",
            "1 if the final database matches tau2-bench's gold actions and the user got all required facts, else 0",
            parts=("database", "communicated"),
        )
    ]


@hookimpl
def harness_commands() -> list[CommandSpec]:
    return [
        CommandSpec(
            "data tau2", "harness_tau2.cli:tau2", "Fetch and check tau2-bench's retail and airline."
        ),
    ]


@hookimpl
def harness_prepared_data() -> list[PreparedDataSpec]:
    return [
        PreparedDataSpec("tau2", "harness_tau2.data:Tau2Data", "retail and airline of tau2-bench"),
    ]
