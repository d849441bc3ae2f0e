"""What the commands share: where results and progress go."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING, Any

from harness.errors import UserError
from harness.wording import printable, printable_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from harness.config import Config
    from harness.results.folder import RunFolder


@cache
def results() -> Console:
    """Where results go: stdout."""
    from harness.cli.console import PlainConsole

    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160  # a pipe has no width; do not cut to 80
    return PlainConsole(width=wide)


@cache
def progress_console() -> Console:
    """Where progress and remarks go: stderr."""
    from harness.cli.console import PlainConsole

    return PlainConsole(stderr=True)


def table(*heads: str, title: str | None = None, **column: Any) -> Table:
    """A table of results, its title on the left. What all columns are like is told as `add_column` takes it."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for head in heads:
        made.add_column(head, **column)
    return made


def one_thread() -> None:
    """Have polars work alone in this process: with tables of runs, more threads cost a quarter more processor time."""
    os.environ.setdefault("POLARS_MAX_THREADS", "1")


def interruptible() -> None:
    """SIGTERM and SIGHUP as Ctrl-C: what was started ends, and what was written stays whole. `nohup` still holds."""

    from harness.results.folder import endings

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in endings():
        signal.signal(number, interrupt)


def as_called() -> str:
    """The command that runs, to be given again."""
    return shlex.join(["harness", *sys.argv[1:]])


def say_what_is_awaited(config: Config, folder: RunFolder) -> None:
    """Where no runners are started here, how others join."""
    if config.rollout.runners == 0:
        progress_console().print(f"rollout.runners is 0: waits for `harness runner --join {folder.path}`")


def named_endpoint(endpoint: str | None, model: str | None, api_key_env: str) -> tuple[str, str, str | None]:
    """URL, model and key: as options say, else as `OPENAI_BASE_URL` (or `OPENAI_API_BASE`) and `MODEL` do.

    Raises:
        UserError: Neither names an endpoint, it is no URL, or it does not list its models and none is named.
    """
    from harness.gateway.client import checked_url

    url, key = endpoint or environment_endpoint(), os.environ.get(api_key_env)
    if not url:
        raise UserError("no endpoint: give --endpoint URL, or set OPENAI_BASE_URL")
    url = checked_url(url)
    model = model or (os.environ.get("MODEL") if endpoint is None else None)
    return url, model or first_model(url, key), key


def environment_endpoint() -> str | None:
    """The endpoint that the environment names."""
    return os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE") or None


def first_model(endpoint: str, api_key: str | None) -> str:
    """The model that an endpoint offers first.

    Raises:
        UserError: It does not answer `GET /models`.
    """
    import httpx

    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        answer = httpx.get(f"{endpoint.rstrip('/')}/models", headers=headers, timeout=30)
        answer.raise_for_status()
        return str(answer.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError) as error:
        raise UserError(
            f"{endpoint} does not list its models ({error}); check the URL, or give --model NAME"
        ) from error


def say(text: str) -> None:
    """A line of results."""
    sys.stdout.write(printable(text) + "\n")


def complain(text: str) -> None:
    """A line that says what is wrong, on stderr."""
    sys.stderr.write(printable(text) + "\n")


def emit_json(data: Any, indent: int | None = 2) -> None:
    """One JSON document on stdout."""
    ascii_only = not (sys.stdout.encoding or "").lower().startswith("utf")  # what a locale lacks has an escape in JSON
    text = json.dumps(data, indent=indent, ensure_ascii=ascii_only, default=str)
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):  # no encoding has half a pair
        text = json.dumps(data, indent=indent, default=str)
    sys.stdout.write(printable_json(text) + "\n")
