"""Runs tasks in verifiers' own harness, where it is installed: `python theirs.py ENDPOINT TASKSETS`.

TASKSETS is JSON: of each by its name, its configuration and how many of its first tasks.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from verifiers.v1.agent import Agent
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.mcp.launch import serve_shared
from verifiers.v1.utils.loaders import taskset_class, taskset_config_type


async def main(endpoint: str, asked: str) -> None:
    """Print what each task scored, with every digit."""
    client = {"type": "eval", "base_url": endpoint, "api_key_var": "THEIR_KEY"}
    given = {
        "model": "scripted",
        "harness": {"id": "null"},
        "runtime": {"type": "subprocess"},
        "client": client,
    }
    agent = Agent(AgentConfig.model_validate(given))
    found = {
        name: await scores(agent, name, config, count)
        for name, (config, count) in json.loads(asked).items()
    }
    sys.stdout.write(json.dumps(found) + "\n")


async def scores(
    agent: Agent, name: str, config: dict[str, Any], count: int
) -> list[dict[str, Any]]:
    made = taskset_config_type(name).model_validate({**config, "id": name})
    taskset, found = taskset_class(name)(made), []
    async with serve_shared(taskset.toolsets(taskset.config)) as shared:
        for task in taskset.take(count):
            trace = await agent.run(task, tools=shared)
            errors = [one.message[-500:] for one in trace.errors]
            found.append(
                {"reward": trace.reward, "stopped": trace.stop_condition, "errors": errors}
            )
    return found


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
