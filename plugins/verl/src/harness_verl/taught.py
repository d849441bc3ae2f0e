"""Rows of supervised training: the first call of a task with its gold answer as the reply.

No rollout is made. Each task has one row, of the session 0 of its group; all other sessions have
`UNTRAINED`. Every row has the same score, so that all of them are the best of their group, as
`train.algorithm: rejection` chooses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from harness.config import Config
from harness.contracts.programs import TaughtCall
from harness_verl.rows import DialogueRow

SCORE = 0.0
"""Score of every row, which is no reward and is not recorded."""
OF_ROLLOUTS = (
    "critic/score/",
    "critic/rewards/",
    "critic/advantages/",
    "critic/returns/",
    "num_turns/",
    "response/aborted_ratio",
    "response_length/clip_ratio",
    "response_length_non_aborted/",
    "timing_per_token_ms/gen",
    "training/num_turns/",
    "training/off_policy/",
    "variance_proxy/",
)
"""Prefixes of verl's metrics that would describe rollouts, which do not exist here."""


@dataclass(frozen=True)
class Teacher:
    """Turns taught calls into token ids, as the policy's server tokenises requests and replies.

    Args:
        model_path: The policy's folder or id on Hugging Face.
    """

    config: Config
    model_path: str

    def row(self, call: TaughtCall) -> DialogueRow | None:
        """Return the row of a call, with log-probabilities of 0; None if it is too long to train.

        A row that is cut would teach half a reply, so nothing is cut.
        """
        from harness_policy_server.tokens import prompt_ids

        limits = self.config.sampling
        request = {
            "messages": call.messages,
            "chat_template_kwargs": limits.chat_template_kwargs,
        }
        prompt = prompt_ids(self._tokenizer, request)
        reply = self._tokenizer.encode(call.reply, add_special_tokens=False)
        response = [*reply, self._end]
        if len(prompt) > limits.max_prompt_tokens or len(response) > limits.max_response_tokens:
            return None
        trained, logprobs = [1] * len(response), [0.0] * len(response)
        return DialogueRow(call.role, False, prompt, response, trained, logprobs)

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        trusted = self.config.policy.trust_remote_code
        return AutoTokenizer.from_pretrained(self.model_path, trust_remote_code=trusted)

    @cached_property
    def _end(self) -> int:
        """The token that ends a reply."""
        from verl.utils.model import get_generation_config

        from harness_policy_server.tokens import end_of_turn, stop_ids

        generation = get_generation_config(
            self.model_path, trust_remote_code=self.config.policy.trust_remote_code
        )
        stops = stop_ids(generation, self._tokenizer)
        return end_of_turn(self._tokenizer, stops, self.config.sampling.chat_template_kwargs)


def report_no_rollouts(trainer: Any) -> None:
    """Remove figures of rollouts from verl's metrics.

    Args:
        trainer: The class of verl's trainer.
    """
    step_once, compute_metrics = trainer._step_once, trainer._compute_metrics

    def step(self: Any, metrics: dict[str, Any], *arguments: Any) -> Any:
        batch = step_once(self, metrics, *arguments)
        without_rollouts(metrics)
        return batch

    def measures(
        self: Any, batch: Any, metrics: dict[str, Any], *arguments: Any, **options: Any
    ) -> None:
        compute_metrics(self, batch, metrics, *arguments, **options)
        without_rollouts(metrics)

    trainer._step_once, trainer._compute_metrics = step, measures


def without_rollouts(metrics: dict[str, Any]) -> None:
    """Remove the metrics of a step that would describe rollouts."""
    for name in [*metrics]:
        if name.startswith(OF_ROLLOUTS):
            del metrics[name]


def left_out(untrained: Mapping[tuple[str, str], float]) -> int:
    """Return the number of tasks without a row.

    Args:
        untrained: Sessions without a row, by task in the queue and session.
    """
    return sum(session == "0" for _, session in untrained)
