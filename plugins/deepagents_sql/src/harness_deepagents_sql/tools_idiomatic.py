"""The tool-calling agent as in DeepAgents' documentation: `create_deep_agent` with tools."""

from __future__ import annotations

import json

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_deepagents_sql.rollouts import Rollout, agent_with, follow
from harness_sql.tool_loop.prompts import ROLES


class DeepAgentsToolsIdiomatic:
    """`max_turns` bounds the calls of the agent and its subagents before the last one."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        prompts = toolbox.prompts
        definitions = json.dumps([tool.definition for tool in toolbox.tools])
        agent = agent_with(prompts.system, definitions)
        rollout = Rollout(toolbox, ROLES[0], calls=toolbox.max_turns + 1, answers_last=True)
        return await follow(agent, prompts.user(problem), rollout)
