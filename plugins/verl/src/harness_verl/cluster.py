"""Check a Ray cluster for `harness doctor --ray` before a training uses it."""

from __future__ import annotations

import logging
import os
import platform
import socket
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

from harness.contracts.findings import Finding, held

CONNECT_S = 5.0
TASK_S = 60.0
"""Seconds in which a node must start a process and answer."""
ALIKE = ("agent-rl-harness", "harness-verl", "verl", "torch", "transformers", "ray")
"""Distributions that must have one version on all nodes."""


def examine(address: str) -> Iterator[Finding]:
    """Report whether the cluster answers, its resources and how its nodes differ from this machine.

    Args:
        address: `HOST:PORT`, as `ray start` printed it.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except (OSError, ValueError) as error:
        advice = "start one: ray start --head --port 6379, and give the HOST:PORT that it prints"
        yield Finding("ray cluster", "problem", f"{address} does not answer ({error})", advice)
        return
    os.environ |= {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}
    import ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (
        Exception
    ) as error:  # Ray raises various errors, for example for other versions or a missing token
        message = " ".join(str(error).split())[:300]
        yield Finding(
            "ray cluster",
            "problem",
            message,
            "use the RAY_AUTH_MODE, RAY_AUTH_TOKEN, Ray and Python of the cluster",
        )
        return
    try:
        yield from _nodes(ray)
    finally:
        ray.shutdown()


def _nodes(ray: Any) -> Iterator[Finding]:
    nodes = ray.nodes()
    alive = [node for node in nodes if node["Alive"]]
    dead = len(nodes) - len(alive)
    total = ray.cluster_resources()
    has = f"{len(alive)} nodes, {total.get('CPU', 0):g} CPUs, {total.get('GPU', 0):g} GPUs"
    yield Finding("ray cluster", "ok", f"{has}{f', {dead} dead' if dead else ''}")
    mine = look()
    task = ray.remote(num_cpus=0)(look)
    for node in alive:
        name = f"ray node {node['NodeManagerAddress']}"
        where = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            node["NodeID"], soft=False
        )
        try:
            there: Mapping[str, str] = ray.get(
                task.options(scheduling_strategy=where).remote(), timeout=TASK_S
            )
        except Exception as error:
            advice = "see its logs in /tmp/ray/session_latest/logs"
            yield Finding(
                name, "problem", f"runs no task: {' '.join(str(error).split())[:200]}", advice
            )
            continue
        differing = []
        for package, have in mine.items():
            if there[package] != have:
                differing.append(f"{package} {there[package] or 'missing'}, here {have}")
        resources = node["Resources"]
        amounts = f"{resources.get('CPU', 0):g} CPUs, {resources.get('GPU', 0):g} GPUs"
        detail = "; ".join([amounts, *differing])
        yield held(name, not differing, detail, "install the versions of this machine there")


def look() -> dict[str, str]:
    """Return versions on the machine where it runs, with empty text for what is not installed."""
    found = {"Python": platform.python_version()}
    for name in ALIKE:
        try:
            found[name] = version(name)
        except (
            Exception
        ):  # not installed; no exception of harness, which may be missing on that node
            found[name] = ""
    return found
