"""The columns of each table, and what is read of them by role."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NotRequired

from typing_extensions import TypedDict


class Episode(TypedDict):
    """A row of `episodes.parquet`: a rollout."""

    step: Annotated[int, "training step; for a validation, the number of steps trained before it"]
    phase: Annotated[str, "`train` or `val`"]
    session: Annotated[int, "number within the task's group, from 0"]
    rollout_id: Annotated[str, "id of the rollout in the store"]
    attempt_id: Annotated[str, "id of the attempt that counted"]
    task_id: Annotated[str, "id of the task"]
    cluster: Annotated[
        str,
        "group of dependent tasks, such as those of one database, for statistics",
    ]
    difficulty: Annotated[str | None, "difficulty, as named by the task set"]
    question: Annotated[str, "the question that the agent saw"]
    agent: Annotated[str, "name of the agent"]
    outcome: Annotated[str, "outcome of the attempt: `ok`, or the kind of failure"]
    detail: Annotated[str, "description of a failure in one line"]
    answer: Annotated[str | None, "the answer; null if there is none"]
    reward: Annotated[float | None, "the verdict; null if unscored"]
    used_reward: Annotated[
        float | None,
        "the reward used for training; differs in control experiments and for `failed_rollouts`",
    ]
    reward_reason: Annotated[str, "explanation of the reward, or why there is none"]
    reward_flags: Annotated[list[str], "documented deviations met while scoring"]
    reward_version: Annotated[str, "name and version of the reward"]
    reward_parts: Annotated[str | None, "JSON: named parts of the reward; null if there are none"]
    reward_by_role: Annotated[str | None, "JSON: reward by role; null if there is none"]
    executed: Annotated[
        bool | None, "whether the answer could be executed; null if the reward does not know"
    ]
    meaning: Annotated[
        str | None,
        "hash of the normalized answer, for a vote; null with one rollout per task, or if it "
        "cannot be normalized",
    ]
    first_answer: Annotated[
        str | None,
        "the answer before any revision; null if the program has no drafts",
    ]
    first_reward: Annotated[float | None, "the reward of `first_answer`"]
    calls: Annotated[int, "calls of the model, including failed ones"]
    failed_calls: Annotated[int, "calls without an answer"]
    failure_codes: Annotated[
        str | None, "JSON: number of calls without an answer, by code of `harness.gateway.failures`"
    ]
    calls_with_tools: Annotated[
        int | None, "calls of the model that offered tools; null if not recorded"
    ]
    parsed_calls: Annotated[int | None, "parsed tool calls; null if not recorded"]
    unread_calls: Annotated[
        int,
        "calls with a reply that contains what looks like a tool call that the server did not parse",
    ]
    empty_replies: Annotated[
        int | None, "calls with a reply that has neither text nor tool calls; null if not recorded"
    ]
    text_elsewhere: Annotated[
        str | None,
        "the field with the text of empty replies, such as `reasoning_content`; empty if there is "
        "none",
    ]
    served_models: Annotated[
        str | None, "models that the servers named in their answers, separated by commas"
    ]
    rate_limits: Annotated[
        int | None, "calls refused by a rate limit; null if not recorded"
    ]
    rate_limit_s: Annotated[float | None, "seconds that calls waited because of rate limits"]
    rewrites: Annotated[int, "calls with a reply that replaced an earlier answer"]
    transitions: Annotated[int, "calls with an answer"]
    trained_transitions: Annotated[int, "answered calls that were given to the trainer"]
    trained_tokens: Annotated[int, "response tokens of the trained calls"]
    prompt_tokens: Annotated[int, "prompt tokens of all calls"]
    response_tokens: Annotated[int, "response tokens of all calls"]
    overridden_calls: Annotated[int, "calls with sampling parameters that the run overrode"]
    call_roles: Annotated[list[str], "roles, in the order of the calls"]
    by_role: Annotated[
        str | None,
        "JSON (in archives of `tools/publish.py`, lists): figures by role, from "
        "`harness.runs.episodes.roles`; null if not recorded",
    ]
    tool_calls: Annotated[str, "JSON: tool, arguments, text, ok, times and fault of each tool call"]
    cut: Annotated[
        list[str] | None, "columns that were shortened; null if not recorded"
    ]
    started_s: Annotated[float, "Unix time of the start"]
    elapsed_s: Annotated[float, "duration of the attempt in seconds"]


class Call(TypedDict):
    """A row of `transitions.parquet`: an answered call of the model."""

    step: Annotated[int, "step of its episode"]
    phase: Annotated[str, "phase of its episode"]
    rollout_id: Annotated[str, "rollout of its episode"]
    attempt_id: Annotated[str, "attempt of its episode"]
    index: Annotated[int, "position within the attempt, from 0, in order of arrival"]
    role: Annotated[str, "role that made the call"]
    trained: Annotated[bool, "whether the call was given to the trainer"]
    paid: Annotated[
        float | None,
        "its reward in the training (`train.credit`); null if not trained",
    ]
    response_id: Annotated[
        str,
        "response id of the engine; with token ids, it belongs to one rollout only",
    ]
    messages: Annotated[str, "JSON: the prompt's messages as sent"]
    response_text: Annotated[str, "text of the reply"]
    cut: Annotated[
        list[str] | None, "columns that were shortened; null if not recorded"
    ]
    finish_reason: Annotated[str | None, "`stop`, `length` or `tool_calls`"]
    prompt_ids: Annotated[
        Sequence[int] | None,
        "token ids of the prompt, as reported by the engine; null if it reports none",
    ]
    response_ids: Annotated[
        Sequence[int] | None,
        "token ids of the reply, as reported by the engine",
    ]
    logprobs: Annotated[
        Sequence[float] | None,
        "log-probability of each response token under the sampling distribution",
    ]
    started_s: Annotated[float, "Unix time at which the gateway received the call"]
    latency_s: Annotated[float, "seconds until the answer was complete"]
    gateway_s: Annotated[
        float,
        "part of `latency_s` spent in the gateway itself, including queueing",
    ]
    demonstrations: NotRequired[
        Annotated[
            int | None,
            "number of demonstrations that the gateway inserted: in `prompt_ids`, not in "
            "`messages`; no column if the run has none",
        ]
    ]


class LoggedStep(TypedDict):
    """A step as logged by a trainer, before it becomes a row of `steps.parquet`."""

    step: Annotated[int, "training step"]
    data: Annotated[
        dict[str, Any],
        "figures by the trainer's own names; values other than numbers are in no table",
    ]


class Trained(TypedDict):
    """Trained transitions and tokens of one role."""

    transitions: Annotated[float, "trained calls; for an arm, the mean over its seeds"]
    tokens: Annotated[float, "sampled tokens; for an arm, the mean over its seeds"]
