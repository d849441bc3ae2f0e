"""A trainer's own options `train.*`: checked, completed, recorded, refused with another trainer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Literal

import pytest
from pydantic import Field

from harness import TrainConfig, plugins
from harness.cli.complete import settings
from harness.config import Config, load_config, validate
from harness.contracts.hookspecs import TrainerSpec, hookimpl
from harness.errors import ConfigError, PluginError
from harness.plugins import Registry
from harness_study.plan import Study, jobs_of
from harness_verl.options import ORDER, VerlTrainConfig, options

CORE = list(TrainConfig.model_fields)
VERL = [name for name in ORDER if name not in CORE]


class Climbing(TrainConfig):
    """Options of a trainer that climbs."""

    noise: float = Field(0.1, gt=0)
    copies: int = Field(4, ge=2, le=64)
    keep: Literal["best", "mean"] = "best"


@pytest.fixture
def trainers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install a plugin with trainers, next to those that are installed."""

    def install(*specs: TrainerSpec, others: bool = True) -> None:
        module = ModuleType("climbing_plugin")
        vars(module).update(
            {
                "HARNESS_API": 1,
                "harness_trainers": hookimpl(lambda: list(specs)),
                "Climbing": Climbing,
                "no_section": dict,
            }
        )
        monkeypatch.setitem(sys.modules, "climbing_plugin", module)
        point = EntryPoint("climbing", "climbing_plugin", "harness")
        installed = entry_points(group="harness")
        found = [one for one in installed if others or one.name != "verl"]
        registry = Registry([*found, point])
        assert {state.name: state.problem for state in registry.states}["climbing"] is None
        monkeypatch.setattr(plugins, "registry", lambda: registry)

    return install


CLIMBS = TrainerSpec("climbs", "climbing:Trainer", "", options="climbing_plugin:Climbing")
PLAIN = TrainerSpec("plain", "climbing:Trainer", "")


def test_a_trainer_s_own_options_are_checked_and_recorded(trainers: Callable[..., None]) -> None:
    trainers(CLIMBS)
    config = load_config(None, None, ["train.trainer=climbs", "train.copies=8", "train.steps=3"])
    assert isinstance(config.train, Climbing)
    assert (config.train.copies, config.train.noise, config.train.steps) == (8, 0.1, 3)
    dumped = config.dump()["train"]
    assert list(dumped) == [*CORE, "noise", "copies", "keep"] and dumped["copies"] == 8
    assert validate(config.dump()) == config
    compared = config.train.identity("cpu", False, False)
    assert compared["copies"] == 8 and not compared.keys() & {"packed", "save_every", *VERL}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.copies=65", "'train.copies': .*less than or equal to 64, got 65"),
        ("train.keep=worst", "'train.keep': .*'best' or 'mean'"),
        ("train.noize=1", "'train.noize' in train of trainer 'climbs'; did you mean 'train.noise'"),
        ("copies=8", "did you mean 'train.copies'"),
        ("clip_low=1", "unknown configuration key 'clip_low'. Known here"),
        (
            "train.clip_low=0.1",
            "'train.clip_low' in train of trainer 'climbs'. Known here: .*noise",
        ),
        ("train.packed.x=1", "'train.packed' in train of trainer 'climbs'"),
    ],
)
def test_other_options_and_values_are_refused_in_one_line(
    setting: str, message: str, trainers: Callable[..., None]
) -> None:
    trainers(CLIMBS)
    with pytest.raises(ConfigError, match=message) as caught:
        load_config("cpu", None, ["train.trainer=climbs", setting])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("option", VERL)
def test_a_trainer_without_options_takes_none_of_verl_s(
    option: str, trainers: Callable[..., None]
) -> None:
    trainers(PLAIN)
    with pytest.raises(
        ConfigError,
        match=f"^unknown configuration key 'train.{option}' in train of trainer 'plain'",
    ) as caught:
        load_config(None, None, ["train.trainer=plain", f"train.{option}=1"])
    assert "\n" not in str(caught.value)
    plain = load_config(None, None, ["train.trainer=plain"])
    assert type(plain.train) is TrainConfig and list(plain.dump()["train"]) == CORE


@pytest.mark.parametrize("others", [True, False], ids=["with verl", "without verl"])
def test_of_a_preset_for_verl_another_trainer_takes_what_it_knows(
    others: bool, trainers: Callable[..., None], tmp_path: Path
) -> None:
    trainers(PLAIN, others=others)
    config = load_config("cpu", None, ["train.trainer=plain"])
    assert config.train.batch_size == 16 and list(config.dump()["train"]) == CORE
    # A file of the user's own is for the trainer that it is used with.
    file = tmp_path / "mine.yaml"
    file.write_text("train: {trainer: plain, weight_decay: 0}\n")
    with pytest.raises(ConfigError, match="'train.weight_decay' in train of trainer 'plain'"):
        load_config("cpu", file)


def test_a_study_s_trainer_is_changed_on_the_command_line(trainers: Callable[..., None]) -> None:
    trainers(PLAIN)
    study = Study.model_validate({"name": "s", "preset": "cpu", "set": {"train.steps": 2}})
    (job,) = jobs_of(study, ["train.trainer=plain"])
    assert (job.config.train.trainer, job.config.train.steps) == ("plain", 2)


def test_options_of_a_trainer_that_is_not_installed_are_kept(trainers: Callable[..., None]) -> None:
    trainers(PLAIN, others=False)
    config = load_config(None, None, ["train.steps=2", "train.clip_low=0.1", "train.more=1"])
    dumped = config.dump()["train"]
    assert (dumped["clip_low"], dumped["more"]) == (0.1, 1)
    with pytest.raises(ConfigError, match=r"'train\.steps'"):
        load_config(None, None, ["train.steps=0"])
    with pytest.raises(PluginError, match="no trainer called 'verl'"):
        plugins.make_trainer(config)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_module:Options", "'climbs' of .*failed to import: No module named"),
        ("climbing_plugin:Missing", "'climbs' of .*failed to import"),
        ("climbing_plugin:no_section", r"'climbs': climbing_plugin:no_section must be a section"),
    ],
)
def test_options_that_are_none_are_refused_by_name(
    target: str, message: str, trainers: Callable[..., None]
) -> None:
    trainers(TrainerSpec("climbs", "climbing:Trainer", "", options=target))
    with pytest.raises(PluginError, match=message):
        load_config(None, None, ["train.trainer=climbs"])
    assert load_config("cpu").train.trainer == "verl", "other trainers work"
    assert "train.clip_low=" in settings("train.")


def test_options_of_all_trainers_are_completed(trainers: Callable[..., None]) -> None:
    trainers(CLIMBS, PLAIN)
    words = settings("train.")
    expected = {"train.noise=", "train.keep=best", "train.keep=mean", "train.clip_low="}
    assert expected <= {*words} and "train.trainer=climbs" in words
    assert len(words) == len({*words})


def test_verl_s_options_are_typed_and_keep_the_order_of_records() -> None:
    config = load_config(None, None, ["train.packed=false"])
    assert options(config).packed is False
    assert list(config.dump()["train"]) == list(ORDER)
    assert {*ORDER} == {*VerlTrainConfig.model_fields} and len({*ORDER}) == len(ORDER)
    assert list(config.train.model_dump(include={"loggers", "clip_low"})) == ["clip_low", "loggers"]


def test_verl_refuses_a_configuration_of_another_trainer(trainers: Callable[..., None]) -> None:
    trainers(PLAIN)
    with pytest.raises(ConfigError, match=r"train\.trainer is 'plain'"):
        options(Config.model_validate({"train": {"trainer": "plain"}}))
