"""The plugin's hooks. Listing plugins imports this module, so it imports nothing else."""

from __future__ import annotations

from harness.contracts.hookspecs import EnvironmentSpec, TaskSetSpec, hookimpl

HARNESS_API = 1


@hookimpl
def harness_environments() -> list[EnvironmentSpec]:
    return [
        EnvironmentSpec(
            "mcp", "harness_mcp_tools.environment:McpEnvironment", "the tools of MCP servers"
        )
    ]


@hookimpl
def harness_tasks() -> list[TaskSetSpec]:
    return [
        TaskSetSpec(
            "mcp",
            "harness_mcp_tools.tasks:McpTasks",
            "your own questions, or those of another task set, for agents with tools of MCP servers",
            splits=("train", "val", "test"),
            environment="mcp",
        )
    ]
