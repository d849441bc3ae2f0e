"""Register the servers of policies and the commands that work on weights.

A module of its own, because vLLM imports the package in each of its processes.
"""

from __future__ import annotations

from harness.contracts.hookspecs import CommandSpec, PolicyServerSpec, hookimpl

HARNESS_API = 1


@hookimpl
def harness_commands() -> list[CommandSpec]:
    return [
        CommandSpec(
            "policy",
            "harness_policy_server.cli.policy:app",
            "List, fetch and show policies by name.",
        ),
        CommandSpec(
            "export",
            "harness_policy_server.cli.export:app",
            "Write a checkpoint as a Hugging Face folder.",
        ),
    ]


@hookimpl
def harness_policy_servers() -> list[PolicyServerSpec]:
    return [
        PolicyServerSpec(
            "policy_server",
            "harness_policy_server.serve:served",
            "its own server on a CPU, vLLM on other devices",
        ),
    ]
