"""Fast check of a tracker's server; the trackers themselves retry for minutes."""

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
"""Variable with the server of each tracker's library."""
LIMIT_S = 5.0
PATIENCE = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "WANDB_INIT_TIMEOUT": "30",
    "WANDB_FINISH_TIMEOUT": "60",
}
"""Default patience of the libraries. With their own defaults, a missing server delays a run for
minutes or forever.
"""


def be_quick() -> None:
    """Set `PATIENCE` in this process; the libraries read it at import."""
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)


def lost(tracker: str) -> str:
    """Return why a tracker's server is unusable, in one line.

    Empty if it answers or none is configured.
    """
    variable = ADDRESSES.get(tracker, "")
    address = os.environ.get(variable, "")
    if os.environ.get(f"{tracker.upper()}_MODE") in ("offline", "disabled", "dryrun", "local"):
        return ""
    if tracker == "mlflow" and not address.startswith("http"):  # a folder or a database
        return ""
    fault = silent(address) if address else ""
    return f"{variable}: {fault}" if fault else ""


def silent(address: str) -> str:
    """Return why an address does not answer, in one line; empty after any answer."""
    shown = without_keys(address)
    try:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return f"{shown} is no address; write http://HOST:PORT"
        # Checks only for an answer: the trackers verify certificates and hold the key.
        httpx.get(shown, timeout=LIMIT_S, verify=False)
    except httpx.TimeoutException:
        return f"{shown} did not answer within {LIMIT_S:g} s"
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, UnicodeError) as error:
        return f"{shown} does not answer: {one_line(error)}"
    return ""


def left_off(tracker: str, fault: str) -> str:
    """Return the message about a tracker that a training continues without."""
    later = (
        f"; export it afterwards: harness runs export RUN --to {tracker}"
        if tracker in ADDRESSES
        else ""
    )
    return f"{tracker}: {fault}. The training continues without it{later}"


def without_keys(address: str) -> str:
    """Return an address without user and password, however they are written."""
    head, separator, rest = address.partition("://") if "://" in address else ("", "", address)
    host, slash, path = rest.partition("/")
    if "@" in host and (separator or ":" in host):
        host = host.rpartition("@")[2]
    elif "@" in path and re.search(r":\D", host):  # a password with a slash in it
        host, slash, path = rest.rpartition("@")[2].partition("/")
    return f"{head}{separator}{host}{slash}{path}"


def one_line(error: Exception, address: str = "") -> str:
    """Return an error as one line, with `address` stripped of keys."""
    text = str(error).replace(address, without_keys(address)) if address else str(error)
    text = re.sub(r"//[^\s@]*@", "//", text)
    text = re.sub(r"<[^<>]*>", " ", text)  # tags of a server's HTML page
    return " ".join(text.split())[:300].rstrip(".") or type(error).__name__
