"""The records that flow from a question to a row: task -> problem -> transition -> verdict -> episode.

Plain frozen dataclasses: they cross process borders as JSON (`dataclasses.asdict`) and nothing here
needs a library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

JSON: TypeAlias = "str | int | float | bool | Sequence[JSON] | Mapping[str, JSON] | None"
"""Plain data."""

CHECK_HEADER = "x-harness-check"
"""The HTTP header of a request that only asks whether an endpoint answers: no agent made it."""

Outcome = Literal[
    "ok",
    "agent_error",
    "prompt_too_long",
    "endpoint_error",
    "environment_error",
    "timeout",
    "no_transitions",
    "runner_lost",
    "reward_error",
]
"""How a rollout ended. Only an attempt that is `ok` carries an answer that may be scored."""

AGENT_OUTCOMES: frozenset[str] = frozenset(
    {"agent_error", "prompt_too_long", "timeout", "no_transitions"}
)
"""Outcomes that the agent brought about itself: wrong answers, not missing ones."""

INFRASTRUCTURE_OUTCOMES: frozenset[str] = frozenset(
    {"endpoint_error", "environment_error", "runner_lost", "reward_error"}
)
"""Outcomes that say nothing about agent or policy: unscored; attempts that end so are retried first."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What an agent may see of one task. It has no field that could hold the gold."""

    task_id: str
    question: str
    context: Mapping[str, str] = field(default_factory=dict)
    """What else the task set tells of the task, by name, for the program's prompts; already cut to the run's limits."""


@dataclass(frozen=True, slots=True)
class Task:
    """One question with its gold. Stays with the host; an agent gets a `Problem` of it.

    Attributes:
        cluster: What tasks share, so that statistics do not take them as independent: a database, a document.
        data: Whatever environment and reward need beside it, as JSON has it.
    """

    id: str
    task_set: str
    split: str
    question: str
    gold: str
    cluster: str = ""
    difficulty: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a reward says of one answer.

    Attributes:
        value: The reward, or None when no verdict could be reached (unscored, never zero).
        reason: One line: why this value, or why unscored.
        parts: Named parts of the value, for example `{"executed": 0.1, "judge": 0.7}`; recorded, not trained on.
        flags: Names of documented deviations that were met while scoring.
        by_role: Values of single roles, in the reward's range; recorded, and trained on with `train.credit: role`.
    """

    value: float | None
    reason: str
    parts: Mapping[str, float] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    by_role: Mapping[str, float] = field(default_factory=dict)

    @property
    def scored(self) -> bool:
        """Whether there is a value: a reward may fail."""
        return self.value is not None


@dataclass(frozen=True, slots=True)
class Transition:
    """One call of one role, exactly as the policy saw and answered it.

    `prompt_ids`, `response_ids` and `logprobs` come from the engine that sampled them and are None
    when the endpoint does not report token ids; they are never computed from text.
    """

    rollout_id: str
    attempt_id: str
    index: int
    """Position of the call within the attempt, from 0, in order of arrival, or of branches that work at once."""
    role: str
    response_id: str
    model: str
    messages: tuple[Mapping[str, Any], ...]
    response_text: str
    finish_reason: str | None
    prompt_ids: tuple[int, ...] | None
    response_ids: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None
    """Log-probability of each response token under the sampling distribution, [response tokens]."""
    prompt_tokens: int | None
    response_tokens: int | None
    sampling: Mapping[str, Any]
    overridden: Mapping[str, Any]
    """Sampling parameters that the agent asked for and the run did not grant."""
    started_s: float
    """Unix time at which the gateway received the call."""
    latency_s: float
    gateway_s: float
    """Part of `latency_s` spent in the gateway itself, queueing included."""
    branch: str = ""
    """Of a team whose members work at once, which of them called: `harness.branches`."""
    offered_tools: tuple[str, ...] = ()
    """Names of the tools that the request let the policy call."""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """Tool calls of the reply, as the server read them."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the request as the agent sent them, in canonical form; long values are hashes."""
    request_digest: str = ""
    """SHA-256 of the whole request in canonical form; empty where it was not recorded."""
    text_elsewhere: str = ""
    """Where the reply has neither content nor tool calls: the name of another field that held text."""
    served_model: str = ""
    """The model that the server names in its answer."""
    rate_limits: int = 0
    """How often the server refused the call for its rate before it answered."""
    rate_limit_s: float = 0.0
    """Part of `latency_s` spent waiting because the server asked for it, in seconds."""

    @property
    def empty(self) -> bool:
        """Whether the reply has neither text nor tool calls."""
        return not self.response_text.strip() and not self.tool_calls

    @property
    def parsed_calls(self) -> tuple[Mapping[str, str], ...]:
        """Return `name` and `arguments`, both text, of the tool calls that have a name."""
        functions = [call.get("function") for call in self.tool_calls]
        return tuple(
            {
                "name": str(function["name"]),
                "arguments": str(function.get("arguments") or ""),
            }
            for function in functions
            if isinstance(function, Mapping) and function.get("name")
        )


Cause = Literal["agent", "policy_server", "harness", "deadline"]
"""Who brought a failure about. After `deadline`, who used the time up decides."""


@dataclass(frozen=True, slots=True)
class CallFailure:
    """One call that got no answer from the endpoint.

    Attributes:
        code: A name from the table of `harness.gateway.failures`.
        cause: Decided where the call failed; nothing is guessed from `detail`.
        status: HTTP status of the endpoint, or None when it did not answer.
        detail: One line for people.
    """

    index: int
    role: str
    code: str
    cause: Cause
    status: int | None
    detail: str
    started_s: float
    latency_s: float
    branch: str = ""
    request_digest: str = ""
    """As of `Transition`; empty where the request was not whole."""
    rate_limits: int = 0
    """As of `Transition`."""
    rate_limit_s: float = 0.0
    """As of `Transition`."""


ToolFault = Literal["", "unknown_tool", "bad_arguments", "failed", "timeout"]
"""What kept a tool call from being carried out; empty where it was, whatever came of it."""


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """Arguments of a tool call in one text: the only one by itself where it is text, else JSON."""
    values = list(arguments.values())
    return (
        values[0]
        if len(values) == 1 and isinstance(values[0], str)
        else json.dumps(arguments, ensure_ascii=False)
    )


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool of the environment, and what the agent was shown of it.

    Attributes:
        arguments: As the agent gave them; `{"": text}` where they were no JSON object.
        ok: Whether the tool did what was asked; an error of a database, say, is shown and not ok.
    """

    tool: str
    arguments: Mapping[str, Any]
    text: str
    ok: bool
    started_s: float
    """Unix time."""
    elapsed_s: float
    fault: ToolFault = ""
    branch: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one attempt at a rollout left behind, before it is scored."""

    rollout_id: str
    attempt_id: str
    outcome: Outcome
    detail: str
    answer: str | None
    transitions: tuple[Transition, ...]
    failures: tuple[CallFailure, ...]
    tool_calls: tuple[ToolCall, ...]
    started_s: float
    elapsed_s: float
    state: Mapping[str, JSON] | None = None
    """What the environment's session says it left behind, for the reward; None where it keeps none. Not recorded."""
    reported: float | None = None
    """The reward that the agent itself gave, for the reward `from_agent`; None where it gave none. Not recorded."""
