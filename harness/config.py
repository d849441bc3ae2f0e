"""The configuration of a run: strict, layered, and resolved into one file that can be run again.

Layers, later ones win: defaults here < preset (`configs/NAME.yaml`) < file < `--set key=value`.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    JsonValue,
    ValidationError,
    field_validator,
    model_validator,
)

from harness.errors import ConfigError
from harness.layers import flatten, merge, nested, numbers, parse_yaml
from harness.wording import shown

Setting = str | tuple[str, Any]
"""`key=value` with a dotted key and a value in YAML, or key and value apart."""
NAMED_NOW = {"plugin": "agent"}
"""Key of older files -> key."""


class Section(BaseModel):
    """A part of the configuration; unknown keys are refused, and so are numbers that are infinite or NaN."""

    model_config = ConfigDict(extra="forbid", validate_default=True, use_attribute_docstrings=True, allow_inf_nan=False)


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
                raise ValueError(f"has {over[0]} without {name}; add {name}, or leave {over[0]} out")
        if self.endpoint is not None and not self.model:
            raise ValueError("names an endpoint and not its model: add model, the name that the endpoint knows it by")
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
    loggers: list[Literal["tensorboard", "wandb", "swanlab", "mlflow"]] = Field(default_factory=list)


class Config(Section):
    """Everything that decides a run."""

    agent: str = "langgraph_sql"
    """Name of the agent."""
    agent_match: str | None = None
    """Regular expression, searched in role names: whose transitions are trained. None: as the agent's program says."""
    max_turns: int = Field(3, ge=1)
    """Answers that an agent may write for one question, the last one unchecked; or rounds of tool calls."""
    seed: int = Field(0, ge=0, lt=2**32)
    device: Literal["auto", "cpu", "cuda", "npu"] = "auto"
    deterministic: bool = False
    """On GPUs: the engine's batch-invariant kernels and torch's deterministic ones, so that the same run twice is the
    same training; slower. A CPU is deterministic as it is."""
    gpus: int = Field(1, ge=1)
    """Devices of one node."""
    nodes: int = Field(1, ge=1)
    ray_address: str | None = None
    """Join this Ray cluster instead of starting one."""
    roles: dict[str, RoleConfig] = Field(default_factory=dict)
    """By role, what answers its calls instead of the policy that is trained or measured."""
    task: TaskConfig = Field(default_factory=TaskConfig)
    reward: RewardConfig = Field(default_factory=RewardConfig)
    policy: PolicyConfig = Field(default_factory=PolicyConfig)
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    eval: EvalConfig = Field(default_factory=EvalConfig)
    sandbox: SandboxConfig = Field(default_factory=SandboxConfig)
    rollout: RolloutSettings = Field(default_factory=RolloutSettings)
    train: TrainConfig = Field(default_factory=TrainConfig)
    verl: dict[str, Any] = Field(default_factory=dict)
    """Any option of verl's own configuration, nested or dotted; wins over what harness sets. One that verl does not
    have is refused, unless a `+` before its dotted name adds it."""

    @field_validator("roles")
    @classmethod
    def _answered(cls, roles: dict[str, RoleConfig]) -> dict[str, RoleConfig]:
        return {name: role for name, role in roles.items() if role != RoleConfig()}

    def packs(self, device: str) -> bool:
        """Whether rows are packed on this device (a resolved one)."""
        if self.train.packed is not None:
            return self.train.packed
        return device == "cpu" or (device == "cuda" and not self.deterministic)

    def merges(self, calls_tools: bool) -> bool:
        """Whether calls of a dialogue become one row, where the program calls tools or does not."""
        return calls_tools and self.train.merge_calls and self.train.batching == "by_rollout"

    def dump(self) -> dict[str, Any]:
        """Plain data, ready for YAML or JSON; `eval` and `roles` are in it where they are not as by default."""
        usual = {"eval": self.eval == EvalConfig(), "roles": not self.roles}
        data = self.model_dump(mode="json", exclude={name for name, left in usual.items() if left})
        if self.roles:
            data["roles"] = {
                name: role.model_dump(mode="json", exclude_defaults=True) for name, role in self.roles.items()
            }
        return data


def load_config(
    preset: str | None = None, file: Path | None = None, overrides: Iterable[Setting] = (), **direct: Any
) -> Config:
    """Resolve the layers into one configuration.

    Args:
        preset: Name in `configs/`, without `.yaml`.
        file: A YAML file, for example a run's `config.yaml`.
        overrides: With dotted keys; later ones win.
        **direct: Command-line options; None is ignored.

    Raises:
        ConfigError: A layer cannot be read, a key is unknown or a value does not fit.
    """
    data: dict[str, Any] = {}
    if preset:
        merge(data, numbers(_read(preset_path(preset))))
    if file:
        merge(data, numbers(_read(file)))
    for item in overrides:
        if isinstance(item, tuple):
            merge(data, _placed(*item))
            continue
        key, separator, text = item.partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"--set wants key=value, got {item!r}. Example: --set train.steps=20")
        try:
            value = parse_yaml(text)
        except ValueError as error:
            raise ConfigError(f"--set {key}: not a YAML value that can be read: {shown(text)} ({error})") from error
        merge(data, _placed(key.strip(), numbers(value)))
    merge(data, {key: value for key, value in direct.items() if value is not None})
    return validate(data)


def _placed(key: str, value: Any) -> dict[str, Any]:
    """One `--set` as nested data; a `+` goes to the option of verl that it adds."""
    if not key.startswith("+"):
        return nested({key: value})
    section, _, option = key.removeprefix("+").partition(".")
    if section != "verl" or not option:
        raise ConfigError(f"--set {key}: only options of verl can be added, as in --set +verl.NAME=VALUE")
    return {"verl": {f"+{option}": value}}


def validate(data: Mapping[str, Any]) -> Config:
    """Check plain data against the schema, with suggestions for misspelt keys."""
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_explain(error)) from error


def presets_dir() -> Path:
    """The folder of presets: of the source tree, else the packaged copy."""
    packaged = Path(__file__).parent / "configs"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent / "configs"


def cache_dir() -> Path:
    """Where what can be made again is kept: `HARNESS_CACHE_DIR`, else `harness` in the user's cache."""
    named = os.environ.get("HARNESS_CACHE_DIR")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "harness"


def presets() -> dict[str, str]:
    """Presets by name with their first comment line."""
    found = {}
    for path in sorted(presets_dir().glob("*.yaml")):
        first = path.read_text(encoding="utf-8").splitlines()[0]
        found[path.stem] = first.removeprefix("#").strip() if first.startswith("#") else ""
    return found


def preset_path(name: str) -> Path:
    """The file of a preset.

    Raises:
        ConfigError: There is none of that name.
    """
    path = presets_dir() / f"{name}.yaml"
    if not path.is_file():
        close = get_close_matches(name, presets(), 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"no preset called {name!r}.{hint} Presets: {', '.join(presets())}")
    return path


def resolve_device(device: str) -> str:
    """`auto` as `cuda` where the driver shows a GPU, else `cpu`. Does not import torch."""
    if device != "auto":
        return device
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return "cpu"
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "cpu"
    count = ctypes.c_int(0)
    working = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return "cuda" if working and count.value > 0 else "cpu"


def key_in(variable: str, setting: str) -> str:
    """The key that an environment variable holds; empty where none is named.

    Args:
        setting: The configuration key that names the variable; begins the message.

    Raises:
        ConfigError: It is no name of a variable, or the variable holds no key.
    """
    if not variable:
        return ""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        raise ConfigError(
            f"{setting} is not the name of an environment variable. Put the key into one, for example JUDGE_API_KEY, "
            "and give that name"
        )
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(f"{setting}: the environment variable {variable} is not set. Export the key")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{setting}: what {variable} holds cannot stand in a header. Export the key")
    return key


def _read(path: Path) -> dict[str, Any]:
    try:
        data = parse_yaml(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read configuration {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not YAML that can be read: {error}. Correct it there") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold a mapping, not a {type(data).__name__}")
    return {NAMED_NOW.get(str(key), str(key)): value for key, value in data.items()}


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    where = [str(part) for part in first["loc"]]
    key = ".".join(where)
    if first["type"] == "extra_forbidden":
        section: type[BaseModel] = RoleConfig if where[0] == "roles" else Config
        for part in where[:-1] if section is Config else ():
            section = type(section.model_fields[part].get_default(call_default_factory=True))
        if key in NAMED_NOW:
            close = [NAMED_NOW[key]]
        else:
            close = get_close_matches(where[-1], section.model_fields, 1)
            if not close and section is Config:  # the name of a key without its section
                close = [whole for whole in flatten(Config().model_dump()) if whole.rpartition(".")[2] == key]
        prefix = ".".join(where[:-1])
        known = ", ".join(section.model_fields)
        hint = f"; did you mean {'.'.join([*where[:-1], close[0]])!r}?" if close else f". Known here: {known}"
        return f"unknown configuration key {key!r}{' in ' + prefix if prefix else ''}{hint}"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "value_error":  # in words of ours
        return f"configuration key {key!r}: {first['ctx']['error']}{more}"
    return f"configuration key {key!r}: {first['msg']}, got {shown(first['input'])}{more}"
