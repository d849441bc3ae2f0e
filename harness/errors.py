"""The exceptions that harness raises on purpose.

HarnessError
├── UserError               a request that cannot be fulfilled: one line, exit status 2
│   ├── ConfigError         an unknown key, an invalid value, a missing file
│   ├── PluginError         a plugin is missing, broken, clashes or was written for another API
│   ├── TaskSetError        the files of a task set are missing, damaged or in the wrong layout
│   ├── EnvironmentProblem  the machine lacks something that the command needs
│   └── NotComparable       two runs differ in something that must be identical
├── RunFailed               a run ended cleanly but unsuccessfully: one line, exit status 1
└── RolloutError            the end of one attempt; recorded on its episode, never a crash of the run
    ├── EndpointError       the model's endpoint returned an error or no answer
    ├── EnvironmentFault    the process behind the tools is gone, hangs or contradicts the task
    └── RewardError         the reward raised, passed its deadline or returned no valid verdict

Any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.metadata import distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

import harness

OVERRIDES = Path(__file__).with_name("overrides.txt")
"""Overrides for `uv pip install --overrides`: libraries that other packages restrict too much."""


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra.

    `gpu` includes `cpu`. docs/installing.md explains why not pip.
    """
    checkout = Path(__file__).parents[1]
    also = " (or gpu)" if extra == "cpu" else ""
    if (checkout / "uv.lock").is_file():
        if Path(sys.prefix) == checkout / ".venv":
            return f"`{_uv()} sync --inexact --extra {extra}`{also} in {checkout}"
        return f"`{with_overrides()} -e {shlex.quote(f'{checkout}[{extra}]')}`{also}"
    wanted = f"{harness.DISTRIBUTION}[{extra}]"
    if wheel := installed_from(harness.DISTRIBUTION):
        folder = shlex.quote(str(wheel.parent))
        return (
            f"`{with_overrides()} --find-links {folder} "
            f"{shlex.quote(f'{wanted} @ {wheel.as_uri()}')}`{also}"
        )
    return (
        f"`{with_overrides()} --find-links FOLDER '{wanted}'`{also}, "
        "FOLDER being where its wheel is"
    )


def with_overrides() -> str:
    """Return the start of a command that installs here and keeps harness's requirements."""
    return (
        f"{_uv()} pip install --python {shlex.quote(sys.executable)} "
        f"--overrides {shlex.quote(str(OVERRIDES))}"
    )


def find_uv() -> str | None:
    """Return the path of `uv` in this environment, in the checkout or on PATH, else None."""
    own = (Path(sys.executable).with_name("uv"), Path(__file__).parents[1] / ".uv" / "bin" / "uv")
    return next((str(one) for one in own if one.is_file()), None) or shutil.which("uv")


def _uv() -> str:
    """Return the shell command that runs uv here; it first installs uv where there is none."""
    found, python = find_uv(), shlex.quote(sys.executable)
    if found is None:
        return f"{python} -m pip install uv && {python} -m uv"
    return "uv" if found == shutil.which("uv") else shlex.quote(found)


def installed_from(package: str) -> Path | None:
    """Return the folder or file that a distribution was installed from, or None if it is gone.

    Raises:
        PackageNotFoundError: The distribution is not installed.
    """
    parts = urlsplit(
        json.loads(distribution(package).read_text("direct_url.json") or "{}").get("url", "")
    )
    path = Path(unquote(parts.path))
    return path if parts.scheme == "file" and path.exists() else None


def nearest(word: str, known: Iterable[str], otherwise: str = "", similarity: float = 0.6) -> str:
    """Suggest the closest known name, as `; did you mean 'agent'?`, else return `otherwise`."""
    close = get_close_matches(word, known, 1, similarity)
    return f"; did you mean {close[0]!r}?" if close else otherwise


def last_line(output: str, otherwise: str = "no output") -> str:
    """Return the last non-empty line of a program's output, which usually states the error."""
    return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), otherwise)


class HarnessError(Exception):
    """Base class of every error that harness raises on purpose."""


class UserError(HarnessError):
    """A request that cannot be fulfilled. The message is one line and states what to do next."""


class ConfigError(UserError):
    """A configuration key or value that cannot be used."""


class PluginError(UserError):
    """A plugin that is missing, broken, clashing or written for another harness API."""


class TaskSetError(UserError):
    """A task set with missing or damaged files, or with files in the wrong layout."""


class EnvironmentProblem(UserError):
    """The machine lacks something that the command needs."""


class NothingToCompare(UserError):
    """Runs without finished results in common, so that there is nothing to compare yet."""


class NotComparable(UserError):
    """Runs that differ in something that must be identical.

    The message has one line per difference.
    """


class NoSuchArm(UserError):
    """A baseline that matches no arm or several arms."""


class RunFailed(HarnessError):
    """A run that ended cleanly but without reaching its goal."""


class RolloutError(HarnessError):
    """The failure that ended one attempt at a rollout."""

    outcome = "agent_error"


class EndpointError(RolloutError):
    """The model's endpoint returned an error or no answer."""

    outcome = "endpoint_error"


class EnvironmentFault(RolloutError):
    """The process behind the tools is gone, hangs or contradicts the task.

    Retried, never scored.
    """

    outcome = "environment_error"


class RewardError(RolloutError):
    """The reward raised, passed its deadline or returned no valid verdict.

    Names the reward and its distribution.
    """

    outcome = "reward_error"
