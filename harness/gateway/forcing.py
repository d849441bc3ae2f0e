"""Replace the sampling parameters that an agent requests by those of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PASSED = frozenset(
    {
        "messages",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "functions",
        "function_call",
        "response_format",
        "stream",
        "stream_options",
    }
)
"""Parameters that are passed on as the agent sent them. All others are set by the run."""

RESERVED = PASSED | {"model", "n", "logprobs", "top_logprobs", "return_token_ids"}
"""Names that a run's sampling may not contain."""

ALIASES = {"max_completion_tokens": "max_tokens"}

_SHOWN = frozenset({"logprobs", "top_logprobs", "return_token_ids"})

# Requesting the default is not recorded as overridden.
_NEUTRAL: Mapping[str, Any] = {
    "n": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "store": False,
}


@dataclass(frozen=True, slots=True)
class ForcedRequest:
    """A request for the upstream, and the agent's parameters that it does not follow.

    Attributes:
        body: The request for the upstream.
        overridden: Parameters that the agent requested and did not get, with the requested values.
        stream: Whether the agent wants server-sent events.
        shows_logprobs: Whether the agent asked to see log-probabilities.
        shows_token_ids: Whether the agent asked to see token ids.
    """

    body: dict[str, Any]
    overridden: dict[str, Any]
    stream: bool
    shows_logprobs: bool
    shows_token_ids: bool


def force(
    asked: Mapping[str, object],
    sampling: Mapping[str, object],
    model: str,
    *,
    token_ids: bool,
    agents_model: str | None = None,
) -> ForcedRequest:
    """Apply the run's model and sampling to an agent's request.

    Args:
        asked: The agent's request.
        sampling: The attempt's sampling parameters; they override the agent's.
        model: The name of the model that answers.
        token_ids: Whether the upstream reports token ids. If not, nothing is added that a plain
            OpenAI server does not know.
        agents_model: The model name that agents use, if it differs: requesting it overrides nothing.
    """
    granted = {ALIASES.get(name, name): value for name, value in sampling.items()}
    body: dict[str, Any] = {"model": model}
    overridden: dict[str, Any] = {}
    for name, value in asked.items():
        # `null` means the same as omitting the parameter.
        if value is None or name in _SHOWN:
            continue
        if name in PASSED:
            body[name] = value
        elif not _holds(name, value, granted, (model, agents_model)):
            overridden[ALIASES.get(name, name)] = value
    # Last, so that no parameter of the agent replaces one of the run.
    body.update(sampling)

    shows_logprobs = bool(asked.get("logprobs"))
    shows_token_ids = bool(asked.get("return_token_ids"))
    if shows_logprobs or token_ids:
        body["logprobs"] = True
    if shows_logprobs and asked.get("top_logprobs") is not None:
        body["top_logprobs"] = asked["top_logprobs"]
    if token_ids:
        body["return_token_ids"] = True
    elif shows_token_ids:
        overridden["return_token_ids"] = asked["return_token_ids"]
        shows_token_ids = False
    return ForcedRequest(
        body, overridden, bool(asked.get("stream")), shows_logprobs, shows_token_ids
    )


def _holds(
    name: str, value: object, granted: Mapping[str, object], models: tuple[object, ...]
) -> bool:
    """Return whether the granted parameters already have the requested value."""
    if name == "model":
        return value in models
    canonical = ALIASES.get(name, name)
    if canonical in granted:
        return value == granted[canonical]
    return value in (_NEUTRAL.get(name), [], {})
