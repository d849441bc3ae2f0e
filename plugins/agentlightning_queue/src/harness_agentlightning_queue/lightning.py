"""agentlightning without LiteLLM.

`import agentlightning` loads LiteLLM and the whole of its proxy server (12 of 13 seconds of
processor time, in every process) for a class `LLMProxy` that harness replaces with its gateway.
agentlightning 0.3.0.
"""

from __future__ import annotations

import sys
import warnings
from types import ModuleType

_PROXY = "agentlightning.llm_proxy"
_INSTRUMENTATION = (
    "agentlightning.instrumentation.litellm",
    "agentlightning.instrumentation.agentops_langchain",
)
"""Modules that harness does not need; the second loads LangChain."""


class LLMProxy:
    """Placeholder for agentlightning's class of this name; it cannot be built."""

    def __init__(self, *_: object, **__: object) -> None:
        raise RuntimeError(
            f"{_PROXY} is not loaded in processes of `harness`: "
            "an agent's calls go through the gateway"
        )


def without_litellm() -> None:
    """Make the first import of agentlightning load no LiteLLM.

    LiteLLM itself stays importable.
    """
    if "agentlightning" in sys.modules:
        return
    # agentlightning imports this module itself.
    warnings.filterwarnings("ignore", "agentlightning.reward is deprecated", UserWarning)
    module = ModuleType(_PROXY, "LiteLLM's proxy is left out.")
    module.__dict__.update(LLMProxy=LLMProxy, __all__=["LLMProxy"])
    sys.modules[_PROXY] = module
    for name in _INSTRUMENTATION:
        sys.modules[name] = None  # type: ignore[assignment]  # agentlightning then takes it as not installed
