"""Command-line agents of others, set up to use nothing but the gateway and the environment's tools.

Their own tools, retries, updates and telemetry are off. Each preset states the version that it was tried with.
"""

from __future__ import annotations

from harness_cli_agents.agent import CommandAgent, CommandLine

_SYSTEM = "Answer the question."
"""Replaces a command's own system prompt, which is about code."""
_CODEX = """\
model = "$model"
model_provider = "gateway"
model_instructions_file = "$folder/.codex/instructions.md"
approval_policy = "never"
sandbox_mode = "read-only"
web_search = "disabled"
check_for_update_on_startup = false

[model_providers.gateway]
name = "gateway"
base_url = "$base_url"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
supports_websockets = false

[mcp_servers.tools]
command = $server_command
args = $server_args
required = true
startup_timeout_sec = 60
default_tools_approval_mode = "approve"

[analytics]
enabled = false

[feedback]
enabled = false

[features]
apps = false
browser_use = false
computer_use = false
enable_request_compression = false
goals = false
image_generation = false
in_app_browser = false
multi_agent = false
plugins = false
remote_plugin = false
shell_snapshot = false
shell_tool = false
skill_search = false
sleep_tool = false
tool_search_always_defer_mcp_tools = false
tool_suggest = false
unified_exec = false
view_image = false
"""


class Codex(CommandAgent):
    """OpenAI's Codex, over the Responses API. Tried with 0.171.0."""

    line = CommandLine(
        command=(
            "codex",
            "exec",
            "--skip-git-repo-check",
            "--ephemeral",
            "--output-last-message",
            "answer.txt",
            "-",
        ),
        variables={"OPENAI_API_KEY": "$api_key", "CODEX_HOME": "$folder/.codex"},
        files={".codex/config.toml": _CODEX, ".codex/instructions.md": _SYSTEM},
        answer="file:answer.txt",
        install="npm install -g @openai/codex",
    )


class ClaudeCode(CommandAgent):
    """Claude Code, over the Messages API. Tried with 2.1.197."""

    line = CommandLine(
        command=(
            "claude",
            "--print",
            "--model",
            "$model",
            "--output-format",
            "json",
            "--tools",
            "",
            "--mcp-config",
            "mcp.json",
            "--strict-mcp-config",
            "--allowedTools",
            "mcp__tools",
            "--setting-sources",
            "",
            "--disable-slash-commands",
            "--no-session-persistence",
            "--system-prompt",
            _SYSTEM,
        ),
        variables={
            "ANTHROPIC_BASE_URL": "$root_url",
            "ANTHROPIC_API_KEY": "$api_key",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_SIMPLE": "1",
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "CLAUDE_CODE_MAX_RETRIES": "0",
            # Without these a slow start of the tools lets the first call leave without them.
            "MCP_CONNECTION_NONBLOCKING": "0",
            "MCP_CONNECT_TIMEOUT_MS": "60000",
            "MCP_TIMEOUT": "60000",
        },
        files={"mcp.json": "$mcp_servers"},
        answer="output:result",
        install="npm install -g @anthropic-ai/claude-code",
    )


class QwenCode(CommandAgent):
    """Qwen Code, over chat completions. Tried with 0.15.10."""

    line = CommandLine(
        command=(
            "qwen",
            "--auth-type",
            "openai",
            "--model",
            "$model",
            "--mcp-config",
            "mcp.json",
            "--core-tools",
            "none",
            "--exclude-tools",
            "tool_search,agent,task_stop,send_message,skill,ask_user_question",
            "--chat-recording",
            "false",
            "--approval-mode",
            "yolo",
            "--output-format",
            "text",
            "--system-prompt",
            _SYSTEM,
        ),
        variables={
            "OPENAI_BASE_URL": "$base_url",
            "OPENAI_API_KEY": "$api_key",
            # It would send even the gateway's calls through a proxy.
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), ""),
        },
        files={
            "mcp.json": "$mcp_servers",
            ".qwen/settings.json": """{
                "general": {"enableAutoUpdate": false},
                "privacy": {"usageStatisticsEnabled": false},
                "telemetry": {"enabled": false},
                "model": {"generationConfig": {"maxRetries": 0}, "skipNextSpeakerCheck": true}
            }""",
        },
        install="npm install -g @qwen-code/qwen-code",
    )
