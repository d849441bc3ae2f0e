"""Parameters of requests from Python or a command: settings, presets and endpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import UserError

if TYPE_CHECKING:
    from harness.config import Setting

PathLike = str | os.PathLike[str]
Settings = Mapping[str, Any] | Iterable[str]
"""Dotted keys with values, or texts `key=value` in the form of `--set`."""


def ordered_settings(settings: Settings | None, **options: Any) -> list[Setting]:
    """Return settings in order of precedence: given options, dotted with `__`, then settings."""
    # A keyword cannot have a dot.
    named = {key.replace("__", "."): value for key, value in options.items() if value is not None}
    given: Iterable[object] = settings.items() if isinstance(settings, Mapping) else settings or ()
    if isinstance(settings, str):
        raise UserError(
            f"settings is a mapping or a list, got {settings!r}. "
            f"Example: settings={{'train.steps': 20}}"
        )
    return [*((key, plain(value)) for key, value in named.items()), *map(_pair, given)]


def key_of(setting: Setting) -> str:
    """Return the dotted key of a setting."""
    return setting.partition("=")[0] if isinstance(setting, str) else setting[0]


def plain(value: object) -> Any:
    """Return a path as text, and any other value as it is."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _pair(one: Any) -> Setting:
    return (one[0], plain(one[1])) if isinstance(one, tuple) else one


def without(given: Mapping[str, object], *names: str) -> dict[str, Any]:
    """Return a function's arguments (its `locals()`) without these names, to pass them on."""
    return {name: value for name, value in given.items() if name not in names}


def path(given: PathLike | None) -> Path | None:
    """Return a path, or None."""
    return None if given is None else Path(given)


def named_store(store: str | None) -> str | None:
    """Return the URL of a separate store from an option, else from agentlightning's variables.

    Raises:
        UserError: `AGL_MANAGED_STORE=0` requires one, and no URL is given.
    """
    if store is not None or os.environ.get("AGL_MANAGED_STORE", "").strip().lower() not in (
        "0",
        "false",
        "no",
        "off",
    ):
        return store.rstrip("/") if store else None
    host, port = os.environ.get("AGL_SERVER_HOST"), os.environ.get("AGL_SERVER_PORT")
    if not host and not port:
        raise UserError(
            "AGL_MANAGED_STORE=0 requires a store, and none is named: "
            "give --store URL, or set AGL_SERVER_HOST"
        )
    return f"http://{host or 'localhost'}:{port or 4747}"


def default_preset(task: str | None, device: str) -> str:
    """Return the default preset of a task set on a device."""
    from harness.plugins import task_set_spec

    own = dict(task_set_spec(task).presets) if task is not None else {}
    return own.get(device, "cpu" if device == "cpu" else "gpu")


def named_endpoint(
    endpoint: str | None,
    model: str | None,
    api_key_env: str,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[str, str, str | None]:
    """Return URL, model and key of an endpoint that answers.

    Options name them, else `OPENAI_BASE_URL` (or `OPENAI_API_BASE`) and `MODEL` do. The default
    model is the first that the endpoint lists.

    Args:
        say: Called with a remark on the default model where the endpoint lists several.

    Raises:
        UserError: Neither names an endpoint, or the endpoint cannot answer; see `checked_endpoint`.
    """
    from harness.policies.endpoints import checked_endpoint
    from harness.util.endpoints import checked_url

    url, key = endpoint or environment_endpoint(), os.environ.get(api_key_env)
    if not url:
        raise UserError(
            "no endpoint: give --endpoint URL, or set OPENAI_BASE_URL; "
            "--model takes a policy or a run to serve here"
        )
    url = checked_url(url)
    model = model or (os.environ.get("MODEL") if endpoint is None else None)
    found = checked_endpoint(url, model, key, api_key_env)
    if model is None and len(found.offered) > 1:
        say(
            f"model: {found.model}, the first of {len(found.offered)} that {url} lists; "
            "another: --model NAME"
        )
    return found.base_url, found.model, found.api_key


def environment_endpoint() -> str | None:
    """Return the endpoint in the environment, or None."""
    return os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE") or None
