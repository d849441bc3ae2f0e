"""The queued request for one rollout: everything that a worker needs, without gold."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from harness.config import Config
from harness.plugins import answer_form, environment, environment_of, program, program_of
from harness.records import Demonstrations, Problem, Task

Phase = Literal["train", "val"]


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One rollout to be run.

    Attributes:
        program: Name of the agent's program, which provides its prompts.
        environment: Name of the environment that provides its tools.
        payload: The environment's data on the machine of the agent.
        tool_timeout_s: Deadline of one tool call.
        phase: `train` samples as configured, `val` decodes greedily unless configured otherwise.
        timeout_s: Deadline of one attempt.
        retries: Further attempts after an infrastructure failure.
        agent: Name of the agent that makes it; runners with another agent refuse it.
        demonstrations: Messages that the gateway inserts into the calls of each role.
    """

    problem: Problem
    program: str
    environment: str
    payload: Mapping[str, Any]
    phase: Phase
    max_turns: int
    sampling: Mapping[str, Any]
    tool_timeout_s: float
    timeout_s: float
    retries: int
    agent: str = ""
    demonstrations: Demonstrations = field(default_factory=dict)

    @classmethod
    def build(
        cls,
        task: Task,
        context: Mapping[str, str],
        config: Config,
        phase: Phase,
        step: int = 0,
        session: int = 0,
        temperature: float = 0.0,
        agent: str | None = None,
    ) -> RolloutRequest:
        """Build the request for one task; step and session choose its random stream.

        Args:
            context: Further inputs of the prompts from the task set.
            temperature: Temperature of validation.
            agent: The agent that makes it; by default the configured one.
        """
        where = environment_of(config.task.name)
        limits = config.sandbox.model_dump()
        agent = agent or config.agent
        return cls(
            problem=problem_of(task, context, config),
            program=program_of(agent),
            environment=where,
            payload=environment(where).payload(task, limits),
            phase=phase,
            max_turns=config.max_turns,
            sampling={
                **sampling_of(config, phase, temperature),
                "seed": rollout_seed(config.seed, phase, step, task.id, session),
            },
            tool_timeout_s=config.sandbox.timeout_s,
            timeout_s=config.rollout.timeout_s,
            retries=config.rollout.retries,
            agent=agent,
        )

    def dump(self) -> dict[str, Any]:
        """Return plain data for the queue, without demonstrations if there are none."""
        data = asdict(self)
        if not self.demonstrations:
            del data["demonstrations"]
        return data

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> RolloutRequest:
        """Return the request from plain data."""
        return cls(**{**data, "problem": Problem(**data["problem"])})


def problem_of(task: Task, context: Mapping[str, str], config: Config) -> Problem:
    """Return the part of a task that agents see.

    Args:
        context: Further inputs of the prompts from the task set.
    """
    form = answer_form(config.reward.name, config.reward.options)
    inputs = program(program_of(config.agent)).inputs(context, form)
    return Problem(task.id, task.question, dict(inputs))


def sampling_of(config: Config, phase: Phase, temperature: float = 0.0) -> dict[str, Any]:
    """Return a phase's sampling: the configured one in training, this temperature in validation."""
    greedy = phase == "val" and temperature == 0
    return {
        "temperature": temperature if phase == "val" else config.sampling.temperature,
        "top_p": 1.0 if greedy else config.sampling.top_p,
        "max_tokens": config.sampling.max_response_tokens,
        **(
            {"chat_template_kwargs": arguments}
            if (arguments := config.sampling.chat_template_kwargs)
            else {}
        ),
    }


def rollout_seed(seed: int, phase: Phase, step: int, task_id: str, session: int) -> int:
    """Return the 31-bit seed of one rollout, the same in every framework.

    The gateway derives the seed of each call from it.
    """
    text = f"{seed}/{phase}/{step}/{task_id}/{session}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
