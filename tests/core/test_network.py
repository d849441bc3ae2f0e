"""A run that other machines take part in is refused unless it says that their network is trusted."""

from __future__ import annotations

import pytest

from harness.config import load_config
from harness.errors import ConfigError
from harness.training.checks import check_network

SPANS = [
    "ray_address=10.0.0.1:6379",
    "ray_address=ray://10.0.0.1:10001",
    "ray_address=auto",
    "ray_address=trainer.example:6379",
    "nodes=2",
    "rollout.host=10.0.0.1",
    "rollout.host=2001:db8::1",
    "rollout.store=http://10.0.0.1:4747",
]
ONE_MACHINE = [
    "ray_address=127.0.0.1:6399",
    "ray_address=local",
    "rollout.host=127.0.0.2",
    "rollout.host=::1",
    "rollout.host=localhost",
    "rollout.store=http://127.0.0.1:4747",
    "rollout.store=http://localhost:4747",
]


@pytest.mark.parametrize("setting", SPANS)
def test_a_run_that_spans_machines_is_refused_without_the_option(setting: str) -> None:
    config = load_config("cpu", None, [setting], agent="reference_sql")
    with pytest.raises(ConfigError) as refused:
        check_network(config)
    assert str(refused.value).startswith(f"{setting}: the run spans machines")
    assert "--set trusted_network=true" in str(refused.value)
    trusted = load_config("cpu", None, [setting, "trusted_network=true"], agent="reference_sql")
    check_network(trusted)


@pytest.mark.parametrize("setting", ONE_MACHINE)
def test_a_run_on_one_machine_needs_no_option(setting: str) -> None:
    check_network(load_config("cpu", None, [setting], agent="reference_sql"))


def test_nodes_behind_a_loopback_address_are_on_one_machine() -> None:
    settings = ["nodes=2", "ray_address=127.0.0.1:6399"]
    check_network(load_config("cpu", None, settings, agent="reference_sql"))


def test_what_only_measures_joins_no_cluster() -> None:
    cluster = load_config("cpu", None, ["ray_address=10.0.0.1:6379"], agent="reference_sql")
    check_network(cluster, trains=False)
    host = load_config("cpu", None, ["rollout.host=10.0.0.1"], agent="reference_sql")
    with pytest.raises(ConfigError, match="the run spans machines"):
        check_network(host, trains=False)


def test_every_command_that_starts_a_run_checks_it() -> None:
    from harness.training.checks import check

    config = load_config("cpu", None, ["nodes=2"], agent="reference_sql")
    with pytest.raises(ConfigError, match="the run spans machines"):
        check(config)
