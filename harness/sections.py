"""The sections of a configuration: what can be set, with defaults and bounds."""

from __future__ import annotations

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
    """A part of the configuration; unknown keys are refused, and so are numbers that are infinite or NaN."""

    model_config = ConfigDict(
        extra="forbid", validate_default=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


class TaskConfig(Section):
    """Which questions are trained on and validated."""

    name: str = "pocket"
    """Task set: `pocket`, `medical`, `spider` or a variant, `bird`, `files` (your own questions), or a plugin's."""
    train_split: str = "train"
    val_split: str = "val"
    train_only: str | None = None
    """A file of task ids, one a line: no others are trained on. `mixed.txt` of a sampled evaluation is such a file."""
    train_limit: int | None = Field(None, ge=1)
    """Use only the first N training tasks of the seeded order."""
    val_limit: int | None = Field(None, ge=1)
    """Use only the first N validation tasks of a fixed, seed-independent order."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed to the task set, for example `sample_rows`, `schema_chars`."""


class RewardConfig(Section):
    """What gives verdicts, and how it is asked."""

    name: str = "execution_accuracy"
    options: dict[str, Any] = Field(default_factory=dict)
    shuffle: bool = False
    """Control experiment: train each rollout with the verdict of another recent one. Nothing can be learned."""
    inverted: float = Field(0.0, ge=0, le=1)
    """Planted handicap: the share of training rollouts that are trained with the opposite verdict. For calibration."""
    concurrency: int | None = Field(None, ge=1)
    """Verdicts at once in one process; unset: as many as there are threads for them, cores + 4 and at most 32."""
    timeout_s: float = Field(300.0, gt=0)
    """Deadline of one verdict; one that is not there by then is the reward's fault, and the rollout is unscored."""
    range: tuple[FiniteFloat, FiniteFloat] | None = None
    """Its lowest and highest value, where the tasks decide that (`verifiers`); nothing is clipped to it."""

    @model_validator(mode="after")
    def _from_low_to_high(self) -> RewardConfig:
        if self.range is not None and not self.range[0] < self.range[1]:
            raise ValueError(f"range {list(self.range)} does not go from a number to a greater one")
        return self


class PolicyConfig(Section):
    """The model that is trained or measured."""

    path: str = "pocket-sql"
    """A name of `harness policy list` (`pocket-sql` is bundled), a local folder, or a Hugging Face id."""
    revision: str | None = None
    """Branch, tag or commit of a Hugging Face id; unset: its newest."""
    trust_remote_code: bool = False


class RoleConfig(Section):
    """What answers the calls of one role instead of the policy: an endpoint, or a policy that stays as it is."""

    endpoint: str | None = None
    """An OpenAI-compatible URL, which ends in `/v1` as a rule."""
    model: str | None = None
    """The name by which the endpoint knows its model."""
    api_key_env: str = ""
    """Name of the environment variable that holds the endpoint's key; the key itself stands nowhere."""
    token_ids: bool = False
    """Whether the endpoint reports token ids on request, as vLLM and `harness serve` do; they are recorded then."""
    policy: str | None = None
    """A policy as `policy.path` names one, or a run's folder, whose newest checkpoint it is; served beside the run."""
    step: int | None = Field(None, ge=1)
    """A checkpoint of that run other than the newest."""
    revision: str | None = None
    """Branch, tag or commit of a Hugging Face id; unset: its newest."""

    @model_validator(mode="after")
    def _one_of_two(self) -> RoleConfig:
        own = {"endpoint": ("model", "api_key_env", "token_ids"), "policy": ("step", "revision")}
        named = [name for name in own if getattr(self, name) is not None]
        if len(named) > 1:
            raise ValueError("names an endpoint and a policy; leave one of them out")
        for name, more in own.items():
            if name not in named and (over := [one for one in more if getattr(self, one)]):
                raise ValueError(
                    f"has {over[0]} without {name}; add {name}, or leave {over[0]} out"
                )
        if self.endpoint is not None and not self.model:
            raise ValueError(
                "names an endpoint and not its model: add model, the name that the endpoint knows it by"
            )
        return self


class SamplingConfig(Section):
    """How the policy draws its replies, and how long they and their prompts may be."""

    temperature: float = Field(1.0, ge=0)
    """Of training rollouts; validation is greedy."""
    top_p: float = Field(1.0, gt=0, le=1)
    max_prompt_tokens: int = Field(1024, ge=16)
    max_response_tokens: int = Field(128, ge=1)
    """Of one call."""
    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    """What the policy's chat template takes beside messages, for example `enable_thinking: false`; vLLM's own word."""


class EvalConfig(Section):
    """Of `harness eval`; a training validates greedily, one rollout a task."""

    samples: int = Field(1, ge=1)
    """Rollouts of a task, each with a seed of its own."""
    temperature: float = Field(0.0, ge=0)
    """0 is greedy; above, `sampling.top_p` holds too."""

    @model_validator(mode="after")
    def _differ(self) -> EvalConfig:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"{self.samples} samples at temperature 0 are one answer drawn {self.samples} times; "
                "raise eval.temperature (--temperature 1.0)"
            )
        return self


class SandboxConfig(Section):
    """Bounds of one call of the environment's tool, and of what the agent sees of its result."""

    timeout_s: float = Field(5.0, gt=0)
    max_rows: int = Field(5, ge=1)
    """Rows of a result that an agent sees."""
    max_chars: int = Field(400, ge=40)
    """Characters of a result that an agent sees."""


class RolloutSettings(Section):
    """How rollouts are made: how many of a task, by how many processes, within which time."""

    group_size: int = Field(4, ge=1)
    """Rollouts of one task that GRPO compares, or of which the best are chosen (verl's `rollout.n`)."""
    runners: int = Field(1, ge=0)
    """Runner processes on this machine; 0: only runners that join from elsewhere (`harness runner --join`)."""
    host: str = Field("127.0.0.1", min_length=1)
    """Address at which store and gateway listen and are reached; this machine's own where others take part."""
    store: str | None = Field(None, pattern=r"^https?://[^\s/?#]+$")
    """URL of a store in a process of its own (`harness store`), as http://10.0.0.1:4747; unset: in this process."""
    concurrency: int = Field(64, ge=1)
    """Rollouts at once inside one runner process."""
    timeout_s: float = Field(120.0, gt=0)
    """Deadline of one attempt."""
    retries: int = Field(1, ge=0)
    """Further attempts after an infrastructure failure."""
    max_failed_share: float = Field(0.5, ge=0, le=1)
    """A step in which a larger share of rollouts ends without a verdict aborts the run."""
    keep_transitions: bool = True
    """Write every prompt and response to `transitions.parquet`."""
    batch_invariant: bool | None = None
    """On GPUs: vLLM's batch-invariant kernels, so that a greedy reply does not depend on the calls that share its batch;
    slower. Unset: off."""
    shadow_share: float = Field(0.1, ge=0, le=1)
    """Share of a strict agent's training rollouts that are replayed with the reference; of validations all are."""

    @field_validator("host")
    @classmethod
    def _reachable(cls, host: str) -> str:
        if host in ("0.0.0.0", "::", "*"):
            raise ValueError("name the one address by which the other machines reach this one")
        return host


class TrainConfig(Section):
    """Which trainer makes the updates, of what, and how many."""

    trainer: str = "verl"
    algorithm: Literal["grpo", "rejection"] = "grpo"
    """What verl makes of the rollouts. `grpo`: each is trained by how its reward stands among its task's. `rejection`:
    rejection fine-tuning, cross entropy on a task's best rollouts alone, where they are good enough."""
    rejection_threshold: float = 0.5
    """The least reward of a rollout that `rejection` trains on."""
    batch_size: int = Field(16, ge=1)
    """Tasks of one step."""
    steps: int | None = Field(None, ge=1)
    """Steps in all; unset: `epochs` over the training tasks."""
    epochs: int = Field(1, ge=1)
    learning_rate: float = Field(1e-6, gt=0)
    mini_batch_size: int | None = Field(None, ge=1)
    """Tasks of one optimizer step; unset: the whole batch."""
    batching: Literal["by_rollout", "verl"] = "by_rollout"
    """`by_rollout`: rows in one order however they arrive, a fixed number of optimizer steps, whole rollouts dealt out
    to them, the baseline over all scored rollouts of a task. `verl`: as verl does it, in order of arrival."""
    failed_rollouts: Literal["zero", "leave_out"] = "zero"
    """What training makes of rollouts that the agent itself ended (error, deadline, overlong prompt, no call): reward 0
    in their group, or left out of it. Their verdict is 0 either way, or the lowest of the reward's range below it."""
    credit: Literal["shared", "turn", "role"] = "shared"
    """What a trained call is paid. `shared`: its rollout's reward. `turn`: what the answer of its own turn is worth.
    `role`: what the reward says of its role, else, of a check, whether it was right, and of others as `turn`."""
    merge_calls: bool = True
    """Calls of a program with tools that go on from one another are one row of an update, whose gradient is the same;
    with `batching: by_rollout`."""
    micro_batch_size: int = Field(8, ge=1)
    """The most sequences of one forward pass on one device, where rows are padded; the largest number that fits the
    batch is taken."""
    packed: bool | None = None
    """Rows end to end instead of padded, `micro_batch_tokens` at a time; unset: on CPUs, and on GPUs that need not be
    `deterministic`."""
    micro_batch_tokens: int = Field(16384, ge=1)
    """The most tokens of one forward pass on one device, where rows are packed; at least one row is taken."""
    recompute: bool | None = None
    """On GPUs: an update computes activations again on its way back instead of keeping them, for a third more time and
    half the memory; unset: where they might not fit."""
    share_prompts: bool | None = None
    """Where rows are packed, compute a prompt that several rows share once in an update; unset: on GPUs without
    flash-attn."""
    clip_low: float = Field(0.2, gt=0)
    clip_high: float = Field(0.3, gt=0)
    kl_coefficient: float = Field(0.0, ge=0)
    """Weight of the KL loss to the initial policy; 0 leaves the reference model out."""
    entropy_coefficient: float = 0.0
    weight_decay: float = Field(0.01, ge=0)
    val_every: int = Field(32, ge=0)
    """Steps between validations; 0: only before and after."""
    save_every: int = Field(64, ge=0)
    """Steps between checkpoints; the last step is always kept."""
    keep_checkpoints: int = Field(2, ge=1)
    lora_rank: int = Field(0, ge=0)
    loggers: list[Literal["tensorboard", "wandb", "swanlab", "mlflow"]] = Field(
        default_factory=list
    )
