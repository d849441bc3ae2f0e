"""The configuration of a run: strict, layered, and resolved into one file that can be run again.

Later layers win: defaults here < preset (`configs/NAME.yaml`) < file < `--set key=value`.
"""

from __future__ import annotations

import ctypes
import operator
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, SerializeAsAny, ValidationError, field_validator

import harness
from harness.config.sections import (
    EvalConfig,
    PolicyConfig,
    RewardConfig,
    RoleConfig,
    RolloutSettings,
    SamplingConfig,
    SandboxConfig,
    Section,
    TaskConfig,
    TrainConfig,
)
from harness.config.trainer_sections import fitting, section_of, trainer_named
from harness.errors import ConfigError
from harness.util.formatting import MIXES, members, shown
from harness.util.parsing import flatten, merge, nested, parse_yaml, without_dates

Setting = str | tuple[str, Any]
"""`key=value` with a dotted key and a YAML value, or a pair of key and value."""
NAMED_NOW = {"plugin": "agent"}
"""Map keys of older files to current keys."""


class Config(Section):
    """All settings that decide a run."""

    agent: str = "langgraph_sql"
    """Name of the agent, or a class in a file: `./my_agent.py:MyAgent`. A list of agents of one
    program, or `first,second`, mixes them in a training: each task of a step goes to one of them.
    """
    agent_match: str | None = None
    """Regular expression, searched in role names, for the transitions to train on. None: the
    agent's program decides.
    """
    max_turns: int = Field(3, ge=1)
    """Most answers that an agent may write per question, the last one unchecked; or rounds of tool
    calls.
    """
    seed: int = Field(0, ge=0, lt=2**32, strict=True)
    device: Literal["auto", "cpu", "cuda", "npu"] = "auto"
    deterministic: bool = False
    """On GPUs: use the engine's batch-invariant kernels and torch's deterministic ones, so that
    repeated runs are bit-identical; slower. CPUs are always deterministic.
    """
    gpus: int = Field(1, ge=1)
    """Devices of one node."""
    nodes: int = Field(1, ge=1)
    ray_address: str | None = None
    """Join this Ray cluster instead of starting one."""
    trusted_network: bool = False
    """Every machine that reaches this run's ports is trusted. A run that spans machines is refused without it."""
    roles: dict[str, RoleConfig] = Field(default_factory=dict)
    """By role, what answers its calls instead of the trained or measured policy."""
    task: TaskConfig = Field(default_factory=TaskConfig)
    reward: RewardConfig = Field(default_factory=RewardConfig)
    policy: PolicyConfig = Field(default_factory=PolicyConfig)
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    eval: EvalConfig = Field(default_factory=EvalConfig)
    sandbox: SandboxConfig = Field(default_factory=SandboxConfig)
    rollout: RolloutSettings = Field(default_factory=RolloutSettings)
    train: SerializeAsAny[TrainConfig] = Field(default_factory=TrainConfig)
    verl: dict[str, Any] = Field(default_factory=dict)
    """Options of verl's own configuration, nested or dotted; they override harness's values.
    Unknown options are refused, unless a `+` before the dotted name adds them.
    """

    @field_validator("seed", mode="before")
    @classmethod
    def _whole_number(cls, seed: Any) -> Any:
        """Return an integer of another library, such as numpy's, as Python's."""
        if not isinstance(seed, bool) and hasattr(seed, "__index__"):
            return operator.index(seed)
        return seed

    @field_validator("agent", mode="before")
    @classmethod
    def _mixed(cls, agent: Any) -> Any:
        """Return the agents of a list as the name of their mixture."""
        if isinstance(agent, list) and agent and all(isinstance(one, str) for one in agent):
            return MIXES.join(agent)
        return agent

    @field_validator("agent")
    @classmethod
    def _placed_anywhere(cls, agent: str) -> str:
        """Return the names of agents, and of agents in a file with its absolute path."""
        placed = []
        for member in members(agent):
            # Processes of a run may have another working directory.
            file, colon, name = member.strip().rpartition(".py:")
            placed.append(f"{Path(file).expanduser().absolute()}{colon}{name}" if colon else name)
        return MIXES.join(placed)

    @field_validator("roles")
    @classmethod
    def _answered(cls, roles: dict[str, RoleConfig]) -> dict[str, RoleConfig]:
        # A role without any setting is answered by the policy, as if it were not named.
        return {name: role for name, role in roles.items() if role != RoleConfig()}

    @field_validator("train", mode="before")
    @classmethod
    def _of_its_trainer(cls, train: Any) -> Any:
        """Return the section of the trainer that is named, validated; other data as it is."""
        if isinstance(train, TrainConfig) and type(train) is not section_of(train.trainer):
            train = train.model_dump(exclude_unset=True)
        if not isinstance(train, Mapping):
            return train
        return section_of(trainer_named({"train": train})).model_validate(train)

    def with_training_reward(self) -> Config:
        """Return this configuration with the reward that trains in place of `reward.name`."""
        return self.model_copy(update={"reward": self.reward.of_training()})

    def batch_invariant(self, device: str) -> bool:
        """Return whether vLLM computes each reply independently of its batch on this device.

        Args:
            device: A resolved one.
        """
        return device == "cuda" and (self.deterministic or self.rollout.batch_invariant)

    def dump(self) -> dict[str, Any]:
        """Return plain data for YAML or JSON.

        `eval` and `roles` are left out if they have their defaults.
        """
        # Leave them out, so that records from before these sections equal newer ones.
        left_out = set() if self.roles else {"roles"}
        if self.eval == EvalConfig():
            left_out.add("eval")
        data = self.model_dump(mode="json", exclude=left_out)
        for name, role in self.roles.items():
            data["roles"][name] = role.model_dump(mode="json", exclude_defaults=True)
        return data


def load_config(
    preset: str | None = None,
    file: Path | None = None,
    overrides: Iterable[Setting] = (),
    **direct: Any,
) -> Config:
    """Resolve the layers into one configuration.

    Args:
        preset: Name in `configs/`, without `.yaml`.
        file: A YAML file, for example a run's `config.yaml`.
        overrides: Settings with dotted keys; later ones win.
        **direct: Command-line options; None is ignored.

    Raises:
        ConfigError: A layer cannot be read, a key is unknown or a value does not fit.
    """
    of_preset = _one_place(without_dates(_read(preset_path(preset)))) if preset else {}
    layers = [_one_place(without_dates(_read(file)))] if file else []
    layers += map(_set, overrides)
    layers.append({key: value for key, value in direct.items() if value is not None})
    data = _merged([of_preset, *layers])
    adapted = fitting(of_preset, trainer_named(data))
    if adapted != of_preset:
        data = _merged([adapted, *layers])
    return validate(data)


def _merged(layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for layer in layers:
        merge(data, layer)
    return data


def _set(item: Setting) -> dict[str, Any]:
    """Return one `--set` as nested data."""
    if isinstance(item, tuple):
        return _placed(*item)
    key, separator, text = item.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"--set wants key=value, got {item!r}. Example: --set train.steps=20")
    try:
        value = parse_yaml(text)
    except ValueError as error:
        raise ConfigError(
            f"--set {key}: not a YAML value that can be read: {shown(text)} ({error})"
        ) from error
    return _placed(key.strip(), without_dates(value))


def _one_place(layer: dict[str, Any]) -> dict[str, Any]:
    """Return a layer with nested options of verl, so that each option has one place in every layer.

    Options that are added with a `+` keep their keys.
    """
    stated = layer.get("verl")
    if not isinstance(stated, dict):
        return layer
    # Hydra takes keys with a plus whole, dots included.
    added = {key: value for key, value in stated.items() if str(key).startswith("+")}
    existing = {key: value for key, value in stated.items() if key not in added}
    return layer | {"verl": nested(existing) | added}


def _placed(key: str, value: Any) -> dict[str, Any]:
    """Return one `--set` as nested data; a `+` moves to the option of verl that it adds."""
    if not key.startswith("+"):
        return nested({key: value})
    section, _, option = key.removeprefix("+").partition(".")
    if section != "verl" or not option:
        raise ConfigError(
            f"--set {key}: only options of verl can be added, as in --set +verl.NAME=VALUE"
        )
    return {"verl": {f"+{option}": value}}


def validate(data: Mapping[str, Any]) -> Config:
    """Check plain data against the schema, with suggestions for misspelt keys."""
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_explain(error, trainer_named(data))) from error


def presets_dir() -> Path:
    """Return the folder of presets: in the source tree, else the packaged copy."""
    package = Path(harness.__file__).parent
    packaged = package / "configs"
    return packaged if packaged.is_dir() else package.parent / "configs"


def cache_dir() -> Path:
    """Return the folder of cached files: `HARNESS_CACHE_DIR`, else `harness` in the user cache."""
    named = os.environ.get("HARNESS_CACHE_DIR")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "harness"


def presets() -> dict[str, str]:
    """Return presets by name with their first comment line."""
    summaries = {}
    for path in sorted(presets_dir().glob("*.yaml")):
        first = path.read_text(encoding="utf-8").splitlines()[0]
        summaries[path.stem] = first.removeprefix("#").strip() if first.startswith("#") else ""
    return summaries


def preset_path(name: str) -> Path:
    """Return the file of a preset.

    Raises:
        ConfigError: No preset has that name.
    """
    path = presets_dir() / f"{name}.yaml"
    if not path.is_file():
        close = get_close_matches(name, presets(), 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"no preset called {name!r}.{hint} Presets: {', '.join(presets())}")
    return path


def resolve_device(device: str) -> str:
    """Resolve `auto` to `cuda` if the driver shows a GPU, else to `cpu`. Does not import torch."""
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
    """Return the key in an environment variable; empty if no variable is named.

    Args:
        setting: The configuration key that names the variable; it begins the message.

    Raises:
        ConfigError: The name is invalid, or the variable holds no key.
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
        raise ConfigError(
            f"{setting}: the environment variable {variable} is not set. Export the key"
        )
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(
            f"{setting}: what {variable} holds cannot stand in a header. Export the key"
        )
    return key


def _read(path: Path) -> dict[str, Any]:
    try:
        data = parse_yaml(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read configuration {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(
            f"{path} is not YAML that can be read: {error}. Correct it there"
        ) from error
    if not isinstance(data, dict):
        held = "nothing" if data is None else f"a {type(data).__name__}"
        raise ConfigError(f"{path} must hold a mapping, and holds {held}. Correct it there")
    for older, current in NAMED_NOW.items():
        if older in data and current in data:
            raise ConfigError(
                f"{path} has both {current!r} and {older!r}, its older name. Remove {older!r}"
            )
    return {NAMED_NOW.get(str(key), str(key)): value for key, value in data.items()}


def _explain(error: ValidationError, trainer: str) -> str:
    """Return the first error in one line.

    Args:
        trainer: The trainer that the configuration names.
    """
    first = error.errors()[0]
    where = [str(part) for part in first["loc"]]
    key = ".".join(where)
    if first["type"] == "extra_forbidden":
        return _unknown(where, trainer)
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "value_error":  # a message of harness's own validators
        return f"configuration key {key!r}: {first['ctx']['error']}{more}"
    return f"configuration key {key!r}: {first['msg']}, got {shown(first['input'])}{more}"


def _unknown(where: Sequence[str], trainer: str) -> str:
    key, prefix, known = ".".join(where), ".".join(where[:-1]), _known(where, trainer)
    if key in NAMED_NOW:
        close = [NAMED_NOW[key]]
    else:
        close = get_close_matches(where[-1], known, 1)
        # A key without its section.
        if not close and where[0] != "roles":
            close = [whole for whole in _every_key(trainer) if whole.rpartition(".")[2] == key]
    hint = f". Known here: {', '.join(known)}"
    if close:
        hint = f"; did you mean {'.'.join([*where[:-1], close[0]])!r}?"
    place = f" in {prefix}" if prefix else ""
    if prefix == "train":
        place += f" of trainer {trainer!r}"
    return f"unknown configuration key {key!r}{place}{hint}"


def _known(where: Sequence[str], trainer: str) -> list[str]:
    """Return the keys of the section that the key at `where` is in."""
    if where[0] == "roles":
        return list(RoleConfig.model_fields)
    section: type[BaseModel] = Config
    parts = list(where[:-1])
    if parts[:1] == ["train"]:
        section, parts = section_of(trainer), parts[1:]
    for part in parts:
        section = type(section.model_fields[part].get_default(call_default_factory=True))
    return list(section.model_fields)


def _every_key(trainer: str) -> list[str]:
    return [*defaults(), *(f"train.{name}" for name in section_of(trainer).model_fields)]


def defaults() -> dict[str, Any]:
    """Return the default settings with dotted keys, without `train`.

    The default trainer defines that section, and it may not be importable.
    """
    return flatten(Config.model_construct().model_dump(exclude={"train"}))
