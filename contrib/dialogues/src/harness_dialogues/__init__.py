"""Dialogues: an agent with tools talks to a user with its own policy."""

from __future__ import annotations

from harness import AgentSpec, EnvironmentSpec, ProgramSpec, RewardSpec, TaskSetSpec, hookimpl
from harness_dialogues.roles import ROLES

HARNESS_API = 1


@hookimpl
def harness_programs() -> list[ProgramSpec]:
    return [
        ProgramSpec(
            "dialogue",
            "harness_dialogues.program:Dialogue",
            "talk to a user, with the tools of any environment",
        )
    ]


@hookimpl
def harness_agents() -> list[AgentSpec]:
    return [
        AgentSpec(
            "reference_dialogue",
            "harness_dialogues.reference:ReferenceDialogue",
            "plain Python: talks to a user and calls tools of any environment",
            roles=ROLES,
            frameworks=("httpx",),
            program="dialogue",
        )
    ]


@hookimpl
def harness_environments() -> list[EnvironmentSpec]:
    return [
        EnvironmentSpec(
            "order_desk", "harness_dialogues.desk.environment:OrderDesk", "orders of a small shop"
        )
    ]


@hookimpl
def harness_tasks() -> list[TaskSetSpec]:
    return [
        TaskSetSpec(
            "order_desk",
            "harness_dialogues.desk.tasks:OrderDeskTasks",
            "customers of a small shop, generated from a seed",
            environment="order_desk",
            presets=(("cpu", "order-desk"), ("cuda", "order-desk"), ("npu", "order-desk")),
        )
    ]


@hookimpl
def harness_rewards() -> list[RewardSpec]:
    return [
        RewardSpec(
            "end_state",
            "harness_dialogues.reward:EndState",
            "1 if the environment's final state equals the gold, else 0",
        )
    ]
