"""Register harness's tool parsers with vLLM through the entry points `vllm.general_plugins`."""

from __future__ import annotations

import multiprocessing

from harness.util.tool_calls import QWEN_CODER


def register() -> None:
    """Make the parser of Qwen2.5-Coder's tool calls known to vLLM by name; safe to repeat.

    verl starts vLLM's application without loading the file that `--tool-parser-plugin` names, so
    the plugin registers the name.
    """
    child = multiprocessing.parent_process() is not None
    if child and not multiprocessing.current_process().name.startswith("ApiServer"):
        return  # an engine or a worker parses no text, and the import would take it time
    from vllm.tool_parsers.abstract_tool_parser import ToolParserManager

    ToolParserManager.register_lazy_module(
        name=QWEN_CODER,
        module_path="harness_policy_server.vllm_parser",
        class_name="QwenCoderToolParser",
    )
