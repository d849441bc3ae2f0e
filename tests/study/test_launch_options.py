"""Options of launchers that YAML reads otherwise than they are meant."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from harness.errors import ConfigError
from harness_study.launchers import launcher, options


def test_a_time_that_yaml_makes_a_number_of_is_refused_with_what_to_write(tmp_path: Path) -> None:
    given = yaml.safe_load("time: 12:00:00")
    assert given == {"time": 43200}
    with pytest.raises(
        ConfigError, match=r'launcher\.slurm\.time is the number 43200; .* time: "12:00:00"'
    ) as found:
        launcher("slurm", given, "launcher.slurm")
    assert "\n" not in str(found.value)
    launcher("slurm", yaml.safe_load('time: "12:00:00"'), "launcher.slurm")
    launcher("slurm", options(["time=60"]))
