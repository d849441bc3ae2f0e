"""Options of task sets and rewards, and endpoints: what does not fit is one line, before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness import cli
from harness.config import load_config
from harness.contracts.hookspecs import TaskSetSpec
from harness.errors import ConfigError
from harness.plugins import make, make_reward, make_task_set
from harness.util.endpoints import checked_url

if TYPE_CHECKING:
    from somewhere import OnlyForCheckers  # type: ignore[import-not-found]

ENDPOINTS = [
    "ftp://x",
    "nonsense",
    "http://",
    "http://[",
    "http://x:port/v1",
    "http://a b/v1",
    "http://x/v1?key=1",
    "",
]


class Strange:
    def __init__(self, needed: str, kind: OnlyForCheckers = None) -> None:
        if kind == "bad":
            raise ValueError("no such kind")
        self.given = (needed, kind)


class Open:
    def __init__(self, **options: Any) -> None:
        self.options = options


class Broken:
    def __init__(self) -> None:
        raise TypeError("its own fault")


def spec(of: type) -> TaskSetSpec:
    return TaskSetSpec(of.__name__, f"{__name__}:{of.__name__}", "", environment="sql")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"foo": 1},
            r"^task\.options\.foo: 'pocket' has no option of that name\. Its options: cache_dir, schema",
        ),
        ({"schema_char": 1}, "did you mean 'schema_chars'"),
        ({"schema_chars": "abc"}, r"task\.options\.schema_chars of 'pocket': .*integer.*'abc'"),
        ({"schema_chars": float("inf")}, r"schema_chars of 'pocket'"),
        ({"schema_chars": 0}, r"schema_chars of 'pocket': .*greater than 0, got 0"),
        ({"cache_dir": 5}, r"task\.options\.cache_dir of 'pocket': .*string"),
    ],
)
def test_a_task_sets_option_that_does_not_fit_is_named(
    options: dict[str, Any], message: str
) -> None:
    config = load_config("cpu")
    config.task.options = options
    with pytest.raises(ConfigError, match=message) as caught:
        make_task_set(config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["execution_accuracy", "soft_f1", "executes", "bird_accuracy", "bird_soft_f1", "bird_r_ves"],
)
def test_a_reward_without_time_is_refused(name: str) -> None:
    config = load_config("cpu", None, [f"reward.name={name}", "reward.options.timeout_s=0"])
    with pytest.raises(
        ConfigError, match=rf"reward\.options\.timeout_s of '{name}': .*greater than 0, got 0"
    ):
        make_reward(config)


def test_a_rewards_option_that_does_not_fit_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"^reward\.options\.foo: .*Its options: keep_distinct, plug_value"
    ):
        make_reward(load_config("cpu", None, ["reward.options.foo=1"]))
    with pytest.raises(ConfigError, match=r"reward\.options\.timeout_s"):
        make_reward(load_config("cpu", None, ["reward.options.timeout_s=soon"]))


def test_options_that_fit_arrive(tmp_path: Path) -> None:
    config = load_config(
        "cpu", None, ["task.options.schema_chars='500'", f"task.options.cache_dir={tmp_path}"]
    )
    assert make_task_set(config).schema_chars == 500  # type: ignore[attr-defined]
    assert make_reward(load_config("cpu", None, ["reward.options.timeout_s=3"])).version


def test_a_plugins_own_kinds_of_options_are_left_to_it() -> None:
    assert make(spec(Strange), {"needed": "a", "kind": 3}, "o").given == ("a", 3)
    assert make(spec(Open), {"anything": 1}, "o").options == {"anything": 1}
    with pytest.raises(ConfigError, match=r"o\.needed: 'Strange' needs this option"):
        make(spec(Strange), {}, "o")
    with pytest.raises(
        ConfigError,
        match=r"cannot be made with needed='a', kind='bad' \(ValueError: no such kind\)",
    ):
        make(spec(Strange), {"needed": "a", "kind": "bad"}, "o")
    with pytest.raises(TypeError, match="its own fault"):
        make(spec(Broken), {}, "o")


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"is no URL of a model server\. Give one such as"):
        checked_url(endpoint)


def test_an_endpoint_loses_its_closing_slash() -> None:
    assert checked_url("https://[::1]:80/v1/") == "https://[::1]:80/v1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (
                "eval",
                "--endpoint",
                "http://127.0.0.1:9/v1",
                "--model",
                "m",
                "--set",
                "task.options.foo=1",
            ),
            "foo",
        ),
        (
            (
                "eval",
                "--endpoint",
                "http://127.0.0.1:9/v1",
                "--model",
                "m",
                "--set",
                "reward.options.foo=1",
            ),
            "foo",
        ),
        (
            ("eval", "--endpoint", "http://127.0.0.1:9/v1", "--model", "m", "--split", "nope"),
            "nope",
        ),
        (("eval", "--endpoint", "http://127.0.0.1:9/v1"), "no model server answers"),
        (("eval", "--endpoint", "ftp://x", "--model", "m"), "no URL"),
        (("dev", "--plugin", "reference_sql", "--endpoint", "nonsense", "--model", "m"), "no URL"),
        (("dev", "--plugin", "reference_sql", "--endpoint", "http://[", "--model", "m"), "no URL"),
        (
            (
                "dev",
                "--plugin",
                "reference_sql",
                "--endpoint",
                "http://x/v1",
                "--set",
                "task.options.foo=1",
            ),
            "foo",
        ),
        (
            ("run", "--question", "?", "--db", __file__, "--endpoint", "ftp://x", "--model", "m"),
            "no URL",
        ),
        (
            (
                "train",
                "--preset",
                "cpu",
                "--plugin",
                "reference_sql",
                "--dry-run",
                "--set",
                "task.train_split=nope",
            ),
            "task.train_split: 'pocket' has no split 'nope'. Use one of: train, val",
        ),
        (
            (
                *(
                    "run",
                    "--question",
                    "?",
                    "--db",
                    __file__,
                    "--endpoint",
                    "http://x/v1",
                    "--model",
                    "m",
                ),
                *("--set", "task.options.schema_chars=abc"),
            ),
            "schema_chars",
        ),
    ],
)
def test_commands_refuse_in_one_line_and_leave_no_folder(
    arguments: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    more = (
        ("--plugin", "reference_sql", "--runs-dir", str(tmp_path)) if arguments[0] == "eval" else ()
    )
    monkeypatch.setattr(sys, "argv", ["harness", *arguments, *more])
    with pytest.raises(SystemExit) as left:
        cli.main()
    error = capsys.readouterr().err
    assert (left.value.code, error.count("\n")) == (2, 1) and message in error
    assert list(tmp_path.iterdir()) == []
