"""Layers, strictness and suggestions of the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.config import Config, load_config, presets, validate
from harness.errors import ConfigError


def test_layers_override_each_other_in_order(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("max_turns: 5\nseed: 7\ntrain: {steps: 3, batch_size: 2}\n")
    config = load_config("cpu", file, ["train.steps=9", "train.learning_rate=1e-4"], agent="reference_sql", seed=None)
    assert (config.agent, config.max_turns, config.seed) == ("reference_sql", 5, 7)
    assert (config.train.steps, config.train.batch_size, config.train.learning_rate) == (9, 2, 1e-4)
    assert config.policy.path == "pocket-sql"  # from the preset


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.stepz=3", "did you mean 'train.steps'"),
        ("steps=3", "did you mean 'train.steps'"),
        ("sed=1", "did you mean 'seed'"),
        ("seed=-1", "greater than or equal to 0"),
        ("train.loggers=[wandbb]", "train.loggers"),
        ("sampling.temperature=inf", "'sampling.temperature': .*finite"),
        ("sampling.temperature=.inf", "'sampling.temperature': .*finite"),
        ("rollout.timeout_s=1e999", "'rollout.timeout_s': .*finite"),
        ("train.entropy_coefficient=.nan", "'train.entropy_coefficient': .*finite"),
        ("nonsense", "wants key=value"),
        ("task={", "not a YAML value"),
    ],
)
def test_a_bad_setting_is_refused_in_one_line(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(overrides=[setting])
    assert "\n" not in str(caught.value)


def test_an_unknown_preset_names_close_ones() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'cpu'"):
        load_config("cpuu")


def test_every_preset_resolves_and_runs_again_as_dumped() -> None:
    for name in presets():
        config = load_config(name)
        assert validate(config.dump()) == config, name


def test_verl_options_pass_through_dotted_or_nested() -> None:
    from harness.trainers.verl.compose import verl_settings

    config = load_config("cpu", None, ["verl.trainer.balance_batch=false"])
    config.verl["actor_rollout_ref.actor.grad_clip"] = 0.5
    settings = verl_settings(config, device="cpu", model_path="m", run_dir=Path("/r"), steps=1)
    assert settings["trainer"]["balance_batch"] is False
    assert settings["actor_rollout_ref"]["actor"]["grad_clip"] == 0.5
    assert settings["actor_rollout_ref"]["rollout"]["name"] == "hf_cpu"


def test_numbers_that_yaml_reads_as_text_are_numbers_at_every_depth(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("verl: {optim: {lr: 1e-4, betas: [0.9, 1e-3]}, name: e5-base}\n")
    config = load_config(None, file, ["verl.optim.eps=1e-8"])
    assert config.verl == {"optim": {"lr": 1e-4, "betas": [0.9, 1e-3], "eps": 1e-8}, "name": "e5-base"}


def test_dates_are_text_and_a_template_is_told_nothing_but_json() -> None:
    told = "sampling.chat_template_kwargs"
    config = load_config(None, None, [f"{told}.day=2020-01-01", "verl.since={first: 2020-01-01 10:00:00}"])
    assert config.sampling.chat_template_kwargs == {"day": "2020-01-01"}
    assert config.verl == {"since": {"first": "2020-01-01T10:00:00"}}
    with pytest.raises(ConfigError, match=rf"{told}.*finite number"):
        load_config(None, None, [f"{told}.x=.nan"])


def test_the_services_address_must_be_one_that_can_be_reached() -> None:
    with pytest.raises(ConfigError, match="name the one address"):
        load_config(None, None, ["rollout.host=0.0.0.0"])


def test_defaults_are_complete() -> None:
    assert Config().dump()["train"]["trainer"] == "verl"
