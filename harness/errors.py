"""Every error that harness raises on purpose.

HarnessError
├── UserError               what the user asked for cannot be done: one line, exit status 2
│   ├── ConfigError         an unknown key, a bad value, a file that is not there
│   ├── PluginError         a plugin is missing, broken, clashes or was written for another API
│   ├── TaskSetError        a task set's files are missing, damaged or laid out wrongly
│   ├── EnvironmentProblem  the machine lacks something that the command needs
│   └── NotComparable       two runs differ in something that must be identical
├── RunFailed               a run ended cleanly but unsuccessfully: one line, exit status 1
└── RolloutError            what ended one attempt; recorded on its episode, never a crash of the run
    ├── EndpointError       the model's endpoint answered with an error or not at all
    ├── EnvironmentFault    what carries the tools out is gone, hangs or is not what the task says
    └── RewardError         the reward raised, passed its deadline or gave no verdict that counts

Anything else is a bug and keeps its traceback.
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
"""For `uv pip install --overrides`: libraries whose bounds others state too narrowly."""


def how_to_install(extra: str) -> str:
    """The command that adds an extra; all of `cpu` is in `gpu`. Not pip: docs/installing.md says why."""
    checkout = Path(__file__).parents[1]
    also = " (or gpu)" if extra == "cpu" else ""
    if (checkout / "uv.lock").is_file():
        if Path(sys.prefix) == checkout / ".venv":
            return f"`{_uv()} sync --inexact --extra {extra}`{also} in {checkout}"
        return f"`{with_overrides()} -e {shlex.quote(f'{checkout}[{extra}]')}`{also}"
    wanted = f"{harness.DISTRIBUTION}[{extra}]"
    if wheel := installed_from(harness.DISTRIBUTION):
        beside = shlex.quote(str(wheel.parent))
        return f"`{with_overrides()} --find-links {beside} {shlex.quote(f'{wanted} @ {wheel.as_uri()}')}`{also}"
    return f"`{with_overrides()} --find-links FOLDER '{wanted}'`{also}, FOLDER being where its wheel is"


def with_overrides() -> str:
    """The beginning of a command that adds to this environment and leaves what harness needs."""
    return f"{_uv()} pip install --python {shlex.quote(sys.executable)} --overrides {shlex.quote(str(OVERRIDES))}"


def find_uv() -> str | None:
    """The `uv` of this environment, of the checkout, or on PATH."""
    own = (Path(sys.executable).with_name("uv"), Path(__file__).parents[1] / ".uv" / "bin" / "uv")
    return next((str(one) for one in own if one.is_file()), None) or shutil.which("uv")


def _uv() -> str:
    """How uv is called from a shell here; where there is none, it is installed first."""
    found, python = find_uv(), shlex.quote(sys.executable)
    if found is None:
        return f"{python} -m pip install uv && {python} -m uv"
    return "uv" if found == shutil.which("uv") else shlex.quote(found)


def installed_from(package: str) -> Path | None:
    """The folder or file that a distribution was installed from, where it is still there.

    Raises:
        PackageNotFoundError: It is not installed.
    """
    parts = urlsplit(
        json.loads(distribution(package).read_text("direct_url.json") or "{}").get("url", "")
    )
    path = Path(unquote(parts.path))
    return path if parts.scheme == "file" and path.exists() else None


def nearest(word: str, known: Iterable[str], otherwise: str = "", similarity: float = 0.6) -> str:
    """`; did you mean 'agent'?` of what is most like a word, or what is said where nothing is."""
    close = get_close_matches(word, known, 1, similarity)
    return f"; did you mean {close[0]!r}?" if close else otherwise


def last_line(output: str, otherwise: str = "no output") -> str:
    """The last line of what a program said that is not empty: what went wrong, as a rule."""
    return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), otherwise)


class HarnessError(Exception):
    """Root of every error that harness raises on purpose."""


class UserError(HarnessError):
    """What the user asked for cannot be done. The message is one line and says what to do next."""


class ConfigError(UserError):
    """A configuration key or value that cannot be used."""


class PluginError(UserError):
    """A plugin that is missing, broken, clashing or written for another harness API."""


class TaskSetError(UserError):
    """A task set whose files are missing, damaged or laid out wrongly."""


class EnvironmentProblem(UserError):
    """The machine lacks something that the command needs."""


class NotComparable(UserError):
    """Runs that differ in something that must be identical; several differences stand in a line each."""


class NoSuchArm(UserError):
    """A baseline that names no arm, or several."""


class RunFailed(HarnessError):
    """A run that ended cleanly but without reaching its goal."""


class RolloutError(HarnessError):
    """What ended one attempt at a rollout."""

    outcome = "agent_error"


class EndpointError(RolloutError):
    """The model's endpoint answered with an error, or not at all."""

    outcome = "endpoint_error"


class EnvironmentFault(RolloutError):
    """What carries the tools out is gone, hangs or is not what the task says: tried again, never scored."""

    outcome = "environment_error"


class RewardError(RolloutError):
    """The reward raised, passed its deadline or gave no verdict that counts. Names it and the distribution it is of."""

    outcome = "reward_error"
