"""Layers, strictness and suggestions of the configuration."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest

from harness.compare.selection import select
from harness.config import Config, load_config, presets, validate
from harness.errors import ConfigError, UserError
from harness.runs.folder import RunFolder
from harness_study.plan import jobs_of, read_study


def test_layers_override_each_other_in_order(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("max_turns: 5\nseed: 7\ntrain: {steps: 3, batch_size: 2}\n")
    config = load_config(
        "cpu", file, ["train.steps=9", "train.learning_rate=1e-4"], agent="reference_sql", seed=None
    )
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
        (f"seed={'9' * 10_000}", "10002 characters.* has 10000 digits"),
        (f"seed=0x{'9' * 10_000}", "has 10002 digits"),
        ("seed=4294967296", "less than 4294967296"),
        ("seed=2026-99-99", "month must be in"),
        (f"policy.path=[{'9, ' * 10_000}]", "'policy.path'.*characters"),
        ("verl.a=[&a [*a]]", "an alias in line 1 refers to a value that contains the alias"),
        (f"verl.a={'[' * 5000}{']' * 5000}", "nested more than 100 levels"),
        (f"reward.options{'.a' * 5000}=1", r"the key 'reward\.options\.a.*'\.\.\. has 5,002 parts"),
    ],
)
def test_a_bad_setting_is_refused_in_one_line(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(overrides=[setting])
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


LEVEL = "x{0}: &x{0} [{1}]"
BOMB = "\n".join(
    f"  {LEVEL.format(n, ', '.join([f'*x{n - 1}' if n else '1'] * 10))}" for n in range(10)
)
MERGES = "  m0: &m0 {a: 1}\n" + "\n".join(
    f"  m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 10)}]}}" for n in range(1, 10)
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("verl: &a\n  b: *a", "an alias in line 2 refers to a value that contains the alias"),
        (f"verl:\n{BOMB}", "more than 100,000 values"),
        (f"verl:\n{MERGES}", "more than 100,000 values"),
        (f"verl: {'[' * 5000}{']' * 5000}", "nested more than 100 levels"),
        (f"seed: {'9' * 10_000}", "the number in line 2 has 10000 digits"),
    ],
)
def test_a_file_that_grows_without_end_is_refused_in_one_line(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"name: mine\n{text}")
    for read in (lambda: load_config(file=file), lambda: read_study(file), lambda: select([file])):
        with pytest.raises(UserError, match=message) as caught:
            read()
        assert "\n" not in str(caught.value) and "mine.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"train:\n  steps: [1, 2\nseed: 3\n",
            r"line 3: expected ',' or '\]', but got ':'.* begins in line 2",
        ),
        (b"seed: 1\nname: *nope\n", "line 2: found undefined alias 'nope'"),
        (b"seed: 1\ntrain: {since: 2026-99-99}\n", "line 2: month must be in"),
        (b"seed: 1\nname: \xff\n", "line 2: not UTF-8"),
        (b"seed: 1\nname: a\0b\n", "line 2: .* not allowed"),
        (b"seed: 1\n\tname: x\n", "line 2: found character"),
    ],
)
def test_a_file_that_is_no_yaml_is_told_with_line_and_cause(
    tmp_path: Path, content: bytes, message: str
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(content)
    for read in (lambda: load_config(file=file), lambda: read_study(file), lambda: select([file])):
        with pytest.raises(UserError, match=message) as caught:
            read()
        error = str(caught.value)
        assert "\n" not in error and "mine.yaml" in error and "unicode string" not in error


def test_a_key_and_its_older_name_are_not_given_together(tmp_path: Path) -> None:
    file = tmp_path / "old.yaml"
    file.write_text("plugin: langgraph_sql\n")
    assert load_config(None, file).agent == "langgraph_sql"
    for text in (
        "agent: crewai_sql\nplugin: langgraph_sql\n",
        "plugin: langgraph_sql\nagent: crewai_sql\n",
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"old\.yaml has both 'agent' and 'plugin'"):
            load_config(None, file)


def test_aliases_and_merges_are_written_out(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("train: &t {steps: 3}\nverl: {a: &a [1, 2], b: *a, c: {<<: *t, x: 1}}\n")
    config = load_config(file=file)
    assert config.train.steps == 3 and config.verl == {
        "a": [1, 2],
        "b": [1, 2],
        "c": {"steps": 3, "x": 1},
    }


def test_an_unknown_preset_names_close_ones() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'cpu'"):
        load_config("cpuu")


def test_every_preset_resolves_and_runs_again_as_dumped() -> None:
    for name in presets():
        config = load_config(name)
        assert validate(config.dump()) == config, name


def test_verl_options_pass_through_dotted_or_nested() -> None:
    from harness_verl.compose import verl_settings

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
    assert config.verl == {
        "optim": {"lr": 1e-4, "betas": [0.9, 1e-3], "eps": 1e-8},
        "name": "e5-base",
    }


@pytest.mark.parametrize("text", ["1e-6", "1E-6", "1.0e-6", "+1e-6", "10.e-7", "0.1e-5", ".1e-5"])
def test_a_plain_number_with_an_exponent_is_a_number_at_every_place(
    text: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"train: {{learning_rate: {text}}}\nverl: {{lr: [{text}]}}\n")
    for config in (
        load_config(None, file),
        load_config(None, None, [f"train.learning_rate={text}", f"verl.lr=[{text}]"]),
    ):
        assert config.train.learning_rate == pytest.approx(1e-6)
        assert config.verl["lr"] == [pytest.approx(1e-6)]


def test_text_in_quotes_stays_text_even_where_it_looks_like_a_number(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "agent_match: '1e5'\n"
        'policy: {path: org/model, revision: "1234e56"}\n'
        'task: {options: {data_dir: "12e3", rate: 12e3}}\n'
    )
    from_file = load_config(None, file)
    from_settings = load_config(
        None,
        None,
        [
            "agent_match='1e5'",
            "policy.path=org/model",
            'policy.revision="1234e56"',
            'task.options={data_dir: "12e3", rate: 12e3}',
        ],
    )
    folder = RunFolder.create(tmp_path, "x")
    folder.write_config(from_file)
    for config in (from_file, from_settings, folder.config()):
        assert config.agent_match == "1e5"
        assert config.policy.revision == "1234e56"
        assert config.task.options == {"data_dir": "12e3", "rate": 12000.0}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("010", "line 1: YAML reads '010' as a number in base 8"),
        ("-0_17", "line 1: YAML reads '-0_17' as a number in base 8"),
        ("1:30", "line 1: YAML reads '1:30' as a number in base 60"),
        ("1:30.5", "line 1: YAML reads '1:30.5' as a number in base 60"),
    ],
)
def test_a_number_that_yaml_reads_in_another_base_is_refused(
    value: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, None, [f"seed={value}"])
    file = tmp_path / "mine.yaml"
    file.write_text(f"verl: {{deep: [{value}]}}\n")
    with pytest.raises(ConfigError, match=rf"mine\.yaml is not YAML .*{message}.*base 10"):
        load_config(None, file)
    file.write_text(f"verl: {{deep: ['{value}', 0x1f, 10, 0, 0.5]}}\n")
    assert load_config(None, file).verl == {"deep": [value, 31, 10, 0, 0.5]}


@pytest.mark.parametrize("value", ["yes", "true", "1.0", "1e0", "'1'", "null"])
def test_a_seed_is_a_whole_number(value: str) -> None:
    with pytest.raises(ConfigError, match="'seed': Input should be a valid integer"):
        load_config(None, None, [f"seed={value}"])
    assert load_config(None, None, ["seed=1"]).seed == 1


def test_keys_and_names_of_a_study_are_text_as_written(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(
        "name: 1e3\nbaseline: 1e-6\npreset: cpu\n"
        "matrix:\n  train.learning_rate: {1e-6: 1e-6, 1e-5: 1e-5}\n  seed: [0, 07]\n"
    )
    study = read_study(file)
    assert (study.name, study.baseline) == ("1e3", "1e-6")
    arms = {(job.arm, job.config.train.learning_rate, job.seed) for job in jobs_of(study)}
    rates = {"1e-6": 1e-6, "1e-5": 1e-5}
    assert arms == {(label, rate, seed) for label, rate in rates.items() for seed in (0, 7)}


def test_a_seed_may_be_an_integer_of_numpy() -> None:
    seed = load_config("cpu", seed=numpy.int64(3)).seed
    assert seed == 3 and type(seed) is int


def test_dates_are_text_and_a_template_is_told_nothing_but_json() -> None:
    key = "sampling.chat_template_kwargs"
    config = load_config(
        None, None, [f"{key}.day=2020-01-01", "verl.since={first: 2020-01-01 10:00:00}"]
    )
    assert config.sampling.chat_template_kwargs == {"day": "2020-01-01"}
    assert config.verl == {"since": {"first": "2020-01-01T10:00:00"}}
    with pytest.raises(ConfigError, match=rf"{key}.*finite number"):
        load_config(None, None, [f"{key}.x=.nan"])


def test_the_services_address_must_be_one_that_can_be_reached() -> None:
    with pytest.raises(ConfigError, match="name the one address"):
        load_config(None, None, ["rollout.host=0.0.0.0"])


def test_defaults_are_complete() -> None:
    assert Config().dump()["train"]["trainer"] == "verl"


def test_an_option_of_verl_has_one_place_and_one_value(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("verl: {trainer.nested.one: 1, +trainer.more: 2, trainer: {balance: true}}\n")
    overrides = ["verl.trainer.nested.one=3", "verl.trainer.balance=false"]
    loaded = load_config("cpu", file, overrides, agent="reference_sql")
    assert loaded.verl == {"trainer": {"nested": {"one": 3}, "balance": False}, "+trainer.more": 2}
    written = tmp_path / "config.yaml"
    written.write_text(json.dumps(loaded.dump()))
    assert load_config(None, written).verl == loaded.verl


@pytest.mark.parametrize(
    ("settings", "device", "expected"),
    [
        ([], "cuda", False),
        (["rollout.batch_invariant=true"], "cuda", True),
        (["rollout.batch_invariant=true"], "cpu", False),
        (["deterministic=true"], "cuda", True),
    ],
)
def test_batch_invariance_is_a_choice_of_gpus(
    settings: list[str], device: str, expected: bool
) -> None:
    config = load_config("cpu", None, settings)
    assert config.batch_invariant(device) is expected


@pytest.mark.parametrize(
    ("deterministic", "users", "expected"),
    [(False, None, "0"), (True, None, "1"), (False, "1", "1"), (True, "0", "0")],
)
def test_engines_of_trainings_share_compiled_models_unless_a_training_is_deterministic(
    monkeypatch: pytest.MonkeyPatch, deterministic: bool, users: str | None, expected: str
) -> None:
    from harness_verl.trainer import COMPILE_CACHE_IS_OFF, _variables

    monkeypatch.delenv(COMPILE_CACHE_IS_OFF, raising=False)
    if users is not None:
        monkeypatch.setenv(COMPILE_CACHE_IS_OFF, users)
    config = load_config("cpu", None, [f"deterministic={str(deterministic).lower()}"])
    assert _variables(config, "cuda", True)[COMPILE_CACHE_IS_OFF] == expected


def test_processes_of_a_gpu_training_have_one_thread_unless_stated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from harness.util.threads import computing_threads
    from harness_verl.trainer import _variables

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    config = load_config("cpu")
    assert _variables(config, "cuda", True)["OMP_NUM_THREADS"] == "1"
    assert _variables(config, "cpu", True)["OMP_NUM_THREADS"] == str(computing_threads())
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert _variables(config, "cuda", True)["OMP_NUM_THREADS"] == "3"


def test_a_training_hands_its_choice_of_kernels_to_every_process() -> None:
    from harness_verl.trainer import _variables

    chosen = load_config("cpu", None, ["rollout.batch_invariant=true"])
    assert _variables(chosen, "cuda", True)["VLLM_BATCH_INVARIANT"] == "1"
    assert "VLLM_BATCH_INVARIANT" not in _variables(load_config("cpu"), "cuda", True)
