"""Command-line agents: a process per attempt. Listing plugins imports this module, so it imports little."""

from __future__ import annotations

import shutil

from harness.contracts.hookspecs import AgentSpec, hookimpl

HARNESS_API = 1
PRESETS = {
    "codex": ("codex", "Codex", "OpenAI's Codex, over the Responses API"),
    "claude_code": ("claude", "ClaudeCode", "Claude Code, over the Messages API"),
    "qwen_code": ("qwen", "QwenCode", "Qwen Code, over chat completions"),
}
"""By name of the agent: its command, its class in `presets`, and a summary."""


@hookimpl
def harness_agents() -> list[AgentSpec]:
    """Return the presets with a command on PATH. The others cannot run on this machine."""
    return [
        AgentSpec(
            name,
            f"{__name__}.presets:{class_name}",
            summary,
            roles=("assistant",),
            strict=False,
            program="tool_loop",
        )
        for name, (command, class_name, summary) in PRESETS.items()
        if shutil.which(command)
    ]
