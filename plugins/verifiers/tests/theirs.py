"""Runs tasks in verifiers' own harness, where it is installed: `python theirs.py ENDPOINT TASKSET CONFIG NUMBERS`."""

from __future__ import annotations

import asyncio
import json
import sys

from verifiers.v1.agent import Agent
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.mcp.launch import serve_shared
from verifiers.v1.utils.loaders import taskset_class, taskset_config_type


async def main(endpoint: str, name: str, config: str, numbers: str) -> None:
    """Print what each task scored, with every digit."""
    made = taskset_config_type(name).model_validate({**json.loads(config), "id": name})
    taskset, wanted = taskset_class(name)(made), json.loads(numbers)
    tasks = list(taskset.take(max(wanted) + 1))
    client = {"type": "eval", "base_url": endpoint, "api_key_var": "THEIR_KEY"}
    given = {"model": "scripted", "harness": {"id": "null"}, "runtime": {"type": "subprocess"}, "client": client}
    agent, found = Agent(AgentConfig.model_validate(given)), {}
    async with serve_shared(taskset.toolsets(taskset.config)) as shared:
        for number in wanted:
            trace = await agent.run(tasks[number], tools=shared)
            errors = [one.message[-500:] for one in trace.errors]
            found[number] = {"reward": trace.reward, "stopped": trace.stop_condition, "errors": errors}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
