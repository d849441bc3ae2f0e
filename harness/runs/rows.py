"""The columns of each table, and what is read of them by role."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NotRequired

from typing_extensions import TypedDict


class Episode(TypedDict):
    """A row of `episodes.parquet`: a rollout."""

    step: Annotated[int, "training step; of a validation, the steps trained before it"]
    phase: Annotated[str, "`train` or `val`"]
    session: Annotated[int, "number within the task's group, from 0"]
    rollout_id: Annotated[str, "of the store"]
    attempt_id: Annotated[str, "of the attempt that counted"]
    task_id: Annotated[str, "the task's"]
    cluster: Annotated[str, "what tasks share, so that statistics do not take them as independent"]
    difficulty: Annotated[str | None, "as the task set has it"]
    question: Annotated[str, "as the agent saw it"]
    agent: Annotated[str, "its name"]
    outcome: Annotated[str, "how the attempt ended: `ok`, or which failure"]
    detail: Annotated[str, "of a failure, in a line"]
    answer: Annotated[str | None, "null where there is none"]
    reward: Annotated[float | None, "the verdict, null when unscored"]
    used_reward: Annotated[
        float | None,
        "what training was given; differs in the shuffled control and for `failed_rollouts`",
    ]
    reward_reason: Annotated[str, "why this value, or why none"]
    reward_flags: Annotated[list[str], "documented deviations met while scoring"]
    reward_version: Annotated[str, "name and version of the reward"]
    reward_parts: Annotated[str | None, "JSON: named parts of the value; null where there are none"]
    reward_by_role: Annotated[str | None, "JSON: values by role; null where there are none"]
    meaning: Annotated[
        str | None,
        "hash of what the answer comes to, for a vote; null where a task has one rollout, or it has no vote",
    ]
    first_answer: Annotated[
        str | None,
        "what the agent would have answered without a revision; null where the program has no drafts",
    ]
    first_reward: Annotated[float | None, "the verdict on it"]
    calls: Annotated[int, "calls of the model, failed ones included"]
    failed_calls: Annotated[int, "of them, without an answer"]
    failure_codes: Annotated[
        str | None, "JSON: calls without an answer by code of `harness.gateway.failures`"
    ]
    calls_with_tools: Annotated[
        int | None, "calls of the model whose request offered tools; null where not recorded"
    ]
    parsed_calls: Annotated[int | None, "parsed tool calls; null where not recorded"]
    unread_calls: Annotated[
        int, "calls whose reply holds what looks like a tool call that the server did not read"
    ]
    empty_replies: Annotated[
        int | None, "calls whose reply has neither text nor tool calls; null where not recorded"
    ]
    text_elsewhere: Annotated[
        str | None,
        "field of the answer that held the text of empty replies, such as `reasoning_content`; empty where none did",
    ]
    served_models: Annotated[
        str | None, "models that the servers named in their answers, parted by commas"
    ]
    rate_limits: Annotated[
        int | None, "times that a server refused a call for its rate; null where not recorded"
    ]
    rate_limit_s: Annotated[float | None, "seconds that calls waited for it"]
    rewrites: Annotated[int, "calls whose reply replaced an earlier answer"]
    transitions: Annotated[int, "calls with an answer"]
    trained_transitions: Annotated[int, "of them, given to the trainer"]
    trained_tokens: Annotated[int, "tokens of their replies"]
    prompt_tokens: Annotated[int, "of all calls"]
    response_tokens: Annotated[int, "of all calls"]
    overridden_calls: Annotated[int, "calls that asked for sampling which the run did not grant"]
    call_roles: Annotated[list[str], "roles in order of the calls"]
    by_role: Annotated[
        str | None,
        "JSON (in archives of `tools/publish.py`, lists): what each role did, by "
        "`harness.runs.episodes.roles`; null where not recorded",
    ]
    tool_calls: Annotated[str, "JSON: tool, arguments, text, ok, times and fault of each"]
    cut: Annotated[
        list[str] | None, "columns of which only the beginning is kept; null where not recorded"
    ]
    started_s: Annotated[float, "Unix time"]
    elapsed_s: Annotated[float, "seconds of the attempt"]


class Call(TypedDict):
    """A row of `transitions.parquet`: an answered call of the model."""

    step: Annotated[int, "as of its episode"]
    phase: Annotated[str, "as of its episode"]
    rollout_id: Annotated[str, "as of its episode"]
    attempt_id: Annotated[str, "as of its episode"]
    index: Annotated[int, "position within the attempt, from 0, in order of arrival"]
    role: Annotated[str, "who called"]
    trained: Annotated[bool, "whether the trainer was given it"]
    paid: Annotated[float | None, "with what value, by `train.credit`; null where it was not"]
    response_id: Annotated[str, "of the engine; with token ids, it belongs to one rollout only"]
    messages: Annotated[str, "JSON: the prompt's messages as sent"]
    response_text: Annotated[str, "the reply"]
    cut: Annotated[
        list[str] | None, "columns of which only the beginning is kept; null where not recorded"
    ]
    finish_reason: Annotated[str | None, "`stop`, `length` or `tool_calls`"]
    prompt_ids: Annotated[
        Sequence[int] | None, "token ids of the prompt, by the engine; null where it reports none"
    ]
    response_ids: Annotated[Sequence[int] | None, "token ids of the reply, by the engine"]
    logprobs: Annotated[
        Sequence[float] | None, "log-probability of each under the sampling distribution"
    ]
    started_s: Annotated[float, "Unix time at which the gateway received the call"]
    latency_s: Annotated[float, "seconds until the answer was whole"]
    gateway_s: Annotated[float, "of them, in the gateway itself, queueing included"]
    demonstrations: NotRequired[
        Annotated[
            int | None,
            "demonstrations that the gateway inserted: in `prompt_ids`, not in `messages`; "
            "no column where a run has none",
        ]
    ]


class LoggedStep(TypedDict):
    """A step as logged by a trainer, before it becomes a row of `steps.parquet`."""

    step: Annotated[int, "training step"]
    data: Annotated[dict[str, Any], "by the trainer's own names; what is no number is in no table"]


class Trained(TypedDict):
    """Trained transitions and tokens of one role."""

    transitions: Annotated[float, "of an arm the mean over its seeds"]
    tokens: Annotated[float, "sampled tokens; of an arm the mean over its seeds"]
