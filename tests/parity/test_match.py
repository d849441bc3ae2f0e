"""`harness match`: which calls an agent_match trains."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from harness.cli.match import matching_roles, near_misses
from harness.errors import ConfigError
from harness.plugins import trained_by
from harness_sql.self_correcting.roles import ROLES


def test_write_is_searched_and_so_trains_rewrites_too() -> None:
    assert matching_roles(ROLES, "write") == ["write_query", "rewrite_query"]
    assert near_misses(ROLES, "write") == [
        "'write' also matches inside 'rewrite_query'; write '^write' to leave it out"
    ]


def test_an_anchored_pattern_has_no_near_miss() -> None:
    assert matching_roles(ROLES, "^write") == ["write_query"]
    assert near_misses(ROLES, "^write") == []
    assert near_misses(ROLES, ".") == []


def test_letter_case_is_remarked_on() -> None:
    assert "'write_query'" in near_misses(ROLES, "Write|check")[0]


@pytest.mark.parametrize(
    ("pattern", "message"), [("writr", "did you mean 'write_query'?"), ("(", "regular expression")]
)
def test_a_pattern_that_trains_nothing_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(ConfigError, match="agent_match") as caught:
        matching_roles(ROLES, pattern)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("agent", "given", "pattern"),
    [
        ("reference_sql", None, "write"),
        ("reference_tools", None, "assistant"),
        ("reference_sql", "^check", "^check"),
        ("reference_sql", "", ""),
    ],
)
def test_the_program_says_which_roles_are_trained_where_nobody_does(
    agent: str, given: str | None, pattern: str
) -> None:
    assert trained_by(agent, given) == pattern


@pytest.mark.slow
def test_command_plays_an_episode_of_any_program(
    command: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = command("match", "reference_tools", "--json")
    assert done.returncode == 0, done.stderr
    calls = json.loads(done.stdout)["calls"]
    assert len(calls) > 1 and all(call["role"] == "assistant" and call["trained"] for call in calls)


@pytest.mark.slow
def test_command_shows_which_calls_would_be_trained() -> None:
    command = [
        sys.executable,
        "-m",
        "harness",
        "match",
        "reference_sql",
        "--agent-match",
        "^check",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [call["trained"] for call in report["calls"]] == [False, True, False, True, False]
