"""The records from a question to a row: task -> problem -> transition -> verdict -> episode.

They are frozen dataclasses that need no library and cross process borders as JSON
(`dataclasses.asdict`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

JSON: TypeAlias = "str | int | float | bool | Sequence[JSON] | Mapping[str, JSON] | None"
"""Plain data, as in JSON."""

Demonstrations: TypeAlias = "Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]"
"""Few-shot demonstrations by role: each is a user message and the assistant's reply to it."""

CHECK_HEADER = "x-harness-check"
"""The HTTP header of requests that only check an endpoint and come from no agent."""

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
"""Outcome of a rollout. Only an attempt that is `ok` has an answer to score."""

AGENT_OUTCOMES: frozenset[str] = frozenset(
    {"agent_error", "prompt_too_long", "timeout", "no_transitions"}
)
"""Outcomes that the agent caused: they count as wrong answers, not as missing ones."""

INFRASTRUCTURE_OUTCOMES: frozenset[str] = frozenset(
    {"endpoint_error", "environment_error", "runner_lost", "reward_error"}
)
"""Outcomes that show nothing about agent or policy: such attempts are retried, then left
unscored.
"""


@dataclass(frozen=True, slots=True)
class Problem:
    """The part of a task that an agent may see. No field can hold the gold."""

    task_id: str
    question: str
    context: Mapping[str, str] = field(default_factory=dict)
    """Further inputs of the program's prompts, by name; already cut to the run's limits."""


@dataclass(frozen=True, slots=True)
class Task:
    """One question with its gold. It stays on the host; an agent gets a `Problem` made from it.

    Attributes:
        cluster: Group of dependent tasks for statistics, for example the same database or document.
        data: Further inputs of environment and reward, as JSON.
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
    """A reward's verdict on one answer.

    Attributes:
        value: The reward, or None if no verdict was possible (unscored, never zero).
        reason: One line that explains the value or why there is none.
        parts: Named parts of the value, for example `{"executed": 0.1, "judge": 0.7}`; recorded,
            not trained on.
        flags: Names of documented deviations met during scoring.
        by_role: Values of single roles, in the reward's range; recorded, and trained on with
            `train.credit: role`.
        executed: Whether the answer could be executed; None if the reward does not know.
    """

    value: float | None
    reason: str
    parts: Mapping[str, float] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    by_role: Mapping[str, float] = field(default_factory=dict)
    executed: bool | None = None

    @property
    def scored(self) -> bool:
        """Return whether there is a value."""
        return self.value is not None


@dataclass(frozen=True, slots=True)
class Transition:
    """One call of one role, with the exact tokens that the policy received and generated.

    `prompt_ids`, `response_ids` and `logprobs` come from the engine that sampled them and are None
    if the endpoint does not report token ids; they are never computed from text.
    """

    rollout_id: str
    attempt_id: str
    index: int
    """Position of the call within the attempt, from 0, in order of arrival. Concurrent branches
    have a fixed order.
    """
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
    """Sampling parameters of the agent's request that the run overrode."""
    started_s: float
    """Unix time at which the gateway received the call."""
    latency_s: float
    gateway_s: float
    """Part of `latency_s` spent in the gateway itself, queueing included."""
    branch: str = ""
    """Name of the concurrent branch that made the call; see `harness.util.branches`."""
    offered_tools: tuple[str, ...] = ()
    """Names of the tools that the request offered to the policy."""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """Tool calls of the reply, as parsed by the server."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the request as the agent sent them, in canonical form; long values are
    hashes.
    """
    request_digest: str = ""
    """SHA-256 of the whole request in canonical form; empty if not recorded."""
    text_elsewhere: str = ""
    """Another field that holds text, for a reply with neither content nor tool calls."""
    served_model: str = ""
    """The model that the server names in its answer."""
    rate_limits: int = 0
    """Number of times that a rate limit refused the call before it was answered."""
    rate_limit_s: float = 0.0
    """Part of `latency_s` spent waiting because the server limited its rate, in seconds."""
    demonstrations: int = 0
    """Demonstrations that the gateway inserted into the request. `messages` and `request_digest`
    are without them; `prompt_ids` and `prompt_tokens`, which the engine reports, include them.
    """

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
"""The party that caused a failure. `deadline` alone names no party: the use of the time decides."""


def request_id(index: int) -> str:
    """Return the id of an attempt's call without an answer, for which an agent may name a role."""
    return f"call-{index}"


@dataclass(frozen=True, slots=True)
class CallFailure:
    """One call without an answer from the endpoint.

    Attributes:
        code: A name from the table of `harness.gateway.failures`.
        cause: Decided where the call failed, never inferred from `detail`.
        status: HTTP status of the endpoint, or None if it did not answer.
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
    """The same as in `Transition`; empty if the request was incomplete."""
    rate_limits: int = 0
    """As of `Transition`."""
    rate_limit_s: float = 0.0
    """As of `Transition`."""

    @property
    def request_id(self) -> str:
        """Return the id that its refusal has in the header `x-request-id`."""
        return request_id(self.index)


ToolFault = Literal["", "unknown_tool", "bad_arguments", "failed", "timeout"]
"""Why a tool call was not carried out; empty if it was, whatever its result."""


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """Return arguments of a tool call as text: a single text argument as it is, otherwise JSON."""
    values = list(arguments.values())
    return (
        values[0]
        if len(values) == 1 and isinstance(values[0], str)
        else json.dumps(arguments, ensure_ascii=False)
    )


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool of the environment, with the text shown to the agent.

    Attributes:
        arguments: As the agent sent them; `{"": text}` if they were no JSON object. The type in
            angle brackets replaces an argument that JSON cannot hold.
        ok: Whether the tool succeeded. A database error, for example, is shown and is not ok.
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
    """The records of one attempt at a rollout before scoring."""

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
    """Final state of the environment's session, for the reward; None if it keeps no state. Not
    recorded.
    """
    reported: float | None = None
    """The agent's own reward, for the reward `from_agent`; None if it gave none. Not recorded."""


_SEQUENCES = (
    "prompt_ids",
    "response_ids",
    "logprobs",
    "messages",
    "offered_tools",
    "tool_calls",
)
"""Fields of a transition that are tuples, and lists in JSON."""


def attempt_from(data: Mapping[str, Any]) -> Attempt:
    """Return an attempt from its JSON form, that of `dataclasses.asdict`."""
    transitions = []
    for call in data["transitions"]:
        fields = dict(call)
        for name in _SEQUENCES:
            if fields.get(name) is not None:
                fields[name] = tuple(fields[name])
        transitions.append(Transition(**fields))
    whole = dict(data)
    whole["transitions"] = tuple(transitions)
    whole["failures"] = tuple(CallFailure(**failure) for failure in data["failures"])
    whole["tool_calls"] = tuple(ToolCall(**call) for call in data["tool_calls"])
    return Attempt(**whole)
