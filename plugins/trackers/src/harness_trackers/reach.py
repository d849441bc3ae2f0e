"""Whether a tracker's server is there, asked at once: the trackers themselves try for minutes."""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit

import httpx

ADDRESSES = {
    "wandb": "WANDB_BASE_URL",
    "mlflow": "MLFLOW_TRACKING_URI",
    "swanlab": "SWANLAB_API_HOST",
}
"""The variable in which a tracker's own library looks for its server."""
LIMIT_S = 5.0
PATIENCE = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "WANDB_INIT_TIMEOUT": "30",
    "WANDB_FINISH_TIMEOUT": "60",
}
"""What the libraries are told where nobody told them: by their own numbers a server that is gone holds a run up for
minutes, or without end."""


def be_quick() -> None:
    """Set `PATIENCE` in this process; the libraries read it when they are imported."""
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)


def lost(tracker: str) -> str:
    """Why a tracker's server cannot be used, in a line; empty where it answers, or its variable names none."""
    variable = ADDRESSES.get(tracker, "")
    address = os.environ.get(variable, "")
    if os.environ.get(f"{tracker.upper()}_MODE") in ("offline", "disabled", "dryrun", "local"):
        return ""
    if tracker == "mlflow" and not address.startswith("http"):  # a folder or a database
        return ""
    fault = silent(address) if address else ""
    return f"{variable}: {fault}" if fault else ""


def silent(address: str) -> str:
    """Why nothing answers at an address, in a line; empty where something does, whatever it says."""
    shown = without_keys(address)
    try:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return f"{shown} is no address; write http://HOST:PORT"
        # Only whether something is there: whom to trust the trackers know, and the key is theirs.
        httpx.get(shown, timeout=LIMIT_S, verify=False)
    except httpx.TimeoutException:
        return f"{shown} did not answer within {LIMIT_S:g} s"
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, UnicodeError) as error:
        return f"{shown} does not answer: {one_line(error)}"
    return ""


def left_off(tracker: str, fault: str) -> str:
    """What is said of a tracker that a training goes on without."""
    later = f"; afterwards: harness runs export RUN --to {tracker}" if tracker in ADDRESSES else ""
    return f"{tracker}: {fault}. The training goes on without it{later}"


def without_keys(address: str) -> str:
    """An address as it may be shown: without user and password, however they are written."""
    head, separator, rest = address.partition("://") if "://" in address else ("", "", address)
    host, slash, path = rest.partition("/")
    if "@" in host and (separator or ":" in host):
        host = host.rpartition("@")[2]
    elif "@" in path and re.search(r":\D", host):  # a password with a slash in it
        host, slash, path = rest.rpartition("@")[2].partition("/")
    return f"{head}{separator}{host}{slash}{path}"


def one_line(error: Exception, address: str = "") -> str:
    """An error's text as one line; `address` stands in it as it may be shown."""
    text = str(error).replace(address, without_keys(address)) if address else str(error)
    text = re.sub(r"//[^\s@]*@", "//", text)
    text = re.sub(r"<[^<>]*>", " ", text)  # of a page that a server answers with
    return " ".join(text.split())[:300].rstrip(".") or type(error).__name__
