"""The sections of a configuration: settings with defaults and bounds."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    JsonValue,
    field_validator,
    model_validator,
)


class Section(BaseModel):
    """A part of the configuration. Unknown keys, infinite numbers and NaN are refused."""

    model_config = ConfigDict(
        extra="forbid", validate_default=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


class TaskConfig(Section):
    """Questions for training and validation."""

    name: str = "pocket"
    """Task set: `pocket`, `medical`, `spider` or a variant, `bird`, `files` (your own questions),
    or a plugin's.
    """
    train_split: str = "train"
    val_split: str = "val"
    train_only: str | None = None
    """File of task ids, one per line; no other tasks are trained on. A sampled evaluation writes
    one: `mixed.txt`.
    """
    train_limit: int | None = Field(None, ge=1)
    """Use only the first N training tasks of the seeded order."""
    val_limit: int | None = Field(None, ge=1)
    """Use only the first N validation tasks of a fixed, seed-independent order."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed to the task set, for example `sample_rows`, `schema_chars`."""


class RewardConfig(Section):
    """The reward, and how it is called."""

    name: str = "execution_accuracy"
    options: dict[str, Any] = Field(default_factory=dict)
    shuffle: bool = False
    """Control experiment: train each rollout with the verdict of another recent one. Nothing can be
    learned.
    """
    inverted: float = Field(0.0, ge=0, le=1)
    """Planted handicap: the share of training rollouts that are trained with the opposite verdict.
    For calibration.
    """
    training: str | None = None
    """Control experiment: the reward that trains, in place of `name`. Verdicts and validations stay
    those of `name`.
    """
    training_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the reward `training`."""
    concurrency: int | None = Field(None, ge=1)
    """Concurrent verdicts in one process; unset: as many as worker threads, cores + 4 and at most
    32.
    """
    timeout_s: float = Field(300.0, gt=0)
    """Deadline of one verdict. A later one is a fault of the reward, and the rollout is
    unscored.
    """
    range: tuple[FiniteFloat, FiniteFloat] | None = None
    """Lowest and highest reward, if the tasks decide them (`verifiers`); nothing is clipped."""

    @model_validator(mode="after")
    def _from_low_to_high(self) -> RewardConfig:
        if self.range is not None and not self.range[0] < self.range[1]:
            raise ValueError(f"range {list(self.range)} does not go from a number to a greater one")
        return self

    @model_validator(mode="after")
    def _options_of_a_reward(self) -> RewardConfig:
        if self.training_options and self.training is None:
            raise ValueError("training_options needs the reward that has them: reward.training")
        return self

    def of_training(self) -> RewardConfig:
        """Return the reward that trains, as the reward of a configuration."""
        if self.training is None:
            return self
        own = {"name": self.training, "options": self.training_options, "range": None}
        return self.model_copy(update={**own, "training": None, "training_options": {}})


class PolicyConfig(Section):
    """The model to train or measure."""

    path: str = "pocket-sql"
    """A name of `harness policy list` (`pocket-sql` is bundled), a local folder, or a Hugging Face
    id.
    """
    revision: str | None = None
    """Branch, tag or commit of a Hugging Face id; unset: the newest."""
    trust_remote_code: bool = False


class RoleConfig(Section):
    """What answers one role instead of the policy: an endpoint or a fixed policy."""

    endpoint: str | None = None
    """An OpenAI-compatible URL, usually ending in `/v1`."""
    model: str | None = None
    """Name of the model at the endpoint."""
    api_key_env: str = ""
    """Name of the environment variable that holds the endpoint's key; the key itself is never
    stored.
    """
    token_ids: bool = False
    """Whether the endpoint reports token ids on request, as vLLM and `harness serve` do; if so,
    they are recorded.
    """
    policy: str | None = None
    """A policy in the form of `policy.path`, or a run's folder for its newest checkpoint; served
    during the run.
    """
    step: int | None = Field(None, ge=1)
    """Use this checkpoint of that run instead of the newest."""
    revision: str | None = None
    """Branch, tag or commit of a Hugging Face id; unset: the newest."""

    @model_validator(mode="after")
    def _one_of_two(self) -> RoleConfig:
        own = {"endpoint": ("model", "api_key_env", "token_ids"), "policy": ("step", "revision")}
        named = [name for name in own if getattr(self, name) is not None]
        if len(named) > 1:
            raise ValueError("names an endpoint and a policy; leave one of them out")
        for name, dependent in own.items():
            if name in named:
                continue
            # An option without what it belongs to would have no effect, and nothing would show it.
            for option in dependent:
                if getattr(self, option):
                    raise ValueError(
                        f"has {option} without {name}; add {name}, or leave {option} out"
                    )
        if self.endpoint is not None and not self.model:
            raise ValueError(
                "names an endpoint and not its model: add model, the name that the endpoint knows it by"
            )
        return self


class SamplingConfig(Section):
    """How the policy samples, and the limits of prompts and replies."""

    temperature: float = Field(1.0, ge=0)
    """Temperature of training rollouts; validation is greedy."""
    top_p: float = Field(1.0, gt=0, le=1)
    max_prompt_tokens: int = Field(1024, ge=16)
    max_response_tokens: int = Field(128, ge=1)
    """Most tokens of one call."""
    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments of the policy's chat template, for example `enable_thinking: false`; vLLM's option
    of the same name.
    """


class EvalConfig(Section):
    """Settings of `harness eval`; a training validates greedily, one rollout per task."""

    samples: int = Field(1, ge=1)
    """Rollouts per task, each with its own seed."""
    temperature: float = Field(0.0, ge=0)
    """0 is greedy; above 0, `sampling.top_p` applies too."""

    @model_validator(mode="after")
    def _differ(self) -> EvalConfig:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"{self.samples} samples at temperature 0 are one answer drawn {self.samples} times; "
                "raise eval.temperature (--temperature 1.0)"
            )
        return self


class SandboxConfig(Section):
    """Bounds of one tool call, and of the result that the agent sees."""

    timeout_s: float = Field(5.0, gt=0)
    max_rows: int = Field(5, ge=1)
    """Most rows of a result that an agent sees."""
    max_chars: int = Field(400, ge=40)
    """Most characters of a result that an agent sees."""


class RolloutSettings(Section):
    """Rollouts: their number per task, their processes and their time limits."""

    group_size: int = Field(4, ge=1)
    """Rollouts per task that GRPO compares, or that the best are chosen from (verl's
    `rollout.n`).
    """
    runners: int = Field(1, ge=0)
    """Runner processes on this machine, at least one for each agent of a mixture; 0: only runners
    of other machines (`harness runner --join`).
    """
    host: str = Field("127.0.0.1", min_length=1)
    """Address of store and gateway; this machine's own address if other machines take part."""
    store: str | None = Field(None, pattern=r"^https?://[^\s/?#]+$")
    """URL of a store in its own process (`harness store`), such as http://10.0.0.1:4747; unset: in
    this process.
    """
    concurrency: int = Field(64, ge=1)
    """Concurrent rollouts in one runner process."""
    timeout_s: float = Field(120.0, gt=0)
    """Deadline of one attempt."""
    retries: int = Field(1, ge=0)
    """Further attempts after an infrastructure failure."""
    max_failed_share: float = Field(0.5, ge=0, le=1)
    """The run ends if a larger share of a step's rollouts has no verdict."""
    keep_transitions: bool = True
    """Record every prompt and response in `transitions.parquet`."""
    batch_invariant: bool = False
    """On GPUs: vLLM's batch-invariant kernels, so that a greedy reply does not depend on the other
    calls in its batch. An evaluation takes about twice the time."""
    shadow_share: float = Field(0.1, ge=0, le=1)
    """Share of a strict agent's training rollouts to replay with the reference; all validation
    rollouts are.
    """

    @field_validator("host")
    @classmethod
    def _reachable(cls, host: str) -> str:
        if host in ("0.0.0.0", "::", "*"):
            raise ValueError("name the one address by which the other machines reach this one")
        return host


class TrainConfig(Section):
    """The trainer, the number of updates, and options that mean the same to every trainer.

    A trainer adds its own options in a subclass, which its `TrainerSpec` names.
    """

    trainer: str = "verl"
    algorithm: Literal["grpo", "rejection", "supervised"] = "grpo"
    """`grpo`: train each rollout by its reward relative to its task's other rollouts. `rejection`:
    rejection fine-tuning, cross entropy on the best rollouts of a task, if they reach
    `rejection_threshold`. `supervised`: cross entropy on gold answers, without training rollouts.
    """
    rejection_threshold: float = 0.5
    """Lowest reward of a rollout that `rejection` trains on."""
    batch_size: int = Field(16, ge=1)
    """Tasks per step."""
    steps: int | None = Field(None, ge=1)
    """Number of steps; unset: `epochs` over the training tasks."""
    epochs: int = Field(1, ge=1)
    learning_rate: float = Field(1e-6, gt=0)
    failed_rollouts: Literal["zero", "leave_out"] = "zero"
    """Training of rollouts that the agent failed (error, deadline, overlong prompt, no call).
    `zero`: reward 0 in their group. `leave_out`: not in their group. The verdict is 0 either way,
    or the lowest reward if that is below 0.
    """
    credit: Literal["shared", "turn", "role"] = "shared"
    """Reward of a trained call. `shared`: its rollout's reward. `turn`: the value of its own turn's
    answer. `role`: the reward's value for its role; without one, correctness for a check and `turn`
    for other roles.
    """
    val_every: int = Field(32, ge=0)
    """Steps between validations; 0: only before and after training."""
    save_every: int = Field(64, ge=0)
    """Steps between checkpoints; the last step is always saved."""
    keep_checkpoints: int = Field(2, ge=0)
    """Newest checkpoints that stay on disk. 0: none once the training has finished; the trained
    policy is not kept then.
    """
    loggers: list[Literal["tensorboard", "wandb", "swanlab", "mlflow"]] = Field(
        default_factory=list
    )

    def checkpoints_saved(self, steps: int) -> int:
        """Return how many checkpoints a training of `steps` steps saves in all."""
        return math.ceil(steps / (self.save_every or steps))

    def checkpoints_at_once(self, steps: int) -> int:
        """Return the most checkpoints of a training of `steps` steps that are on the disk at once.

        A trainer may remove the oldest one after it has written the newest.
        """
        return min(max(self.keep_checkpoints, 1) + 1, self.checkpoints_saved(steps))

    def identity(self, device: str, deterministic: bool, calls_tools: bool) -> dict[str, Any]:
        """Return the options that runs must share to be compared, as plain data.

        A trainer overrides this where its own options cannot change what is learned. One that
        changes no weights adds `updates_weights: False`; comparisons at equal optimizer steps or
        trained tokens then leave it out.

        Args:
            device: The resolved device.
            deterministic: The configuration's `deterministic`.
            calls_tools: Whether the agent's program calls tools.
        """
        return self.model_dump(mode="json", exclude={"loggers", "keep_checkpoints", "save_every"})


class UncheckedTrainConfig(TrainConfig):
    """The section `train` of a trainer that is not installed: its options are kept unchecked.

    Configurations can be read and endpoints and policies evaluated without it. A training, and the
    export of a policy from its checkpoints, are refused.
    """

    model_config = ConfigDict(extra="allow")
