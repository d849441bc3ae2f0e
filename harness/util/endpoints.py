"""Model endpoints: their addresses, their labels in records, and the text of their errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

import orjson

from harness.errors import ConfigError

LABEL_SEPARATOR = " at "
_DETAIL_CHARS = 500
"""Most characters of an error's text."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI-compatible endpoint.

    Attributes:
        base_url: Ends in `/v1`.
        model: The name it knows the model by.
        token_ids: Whether it reports token ids on request, as vLLM does.
    """

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    token_ids: bool = False

    @property
    def label(self) -> str:
        """Return the model and its URL, as records name an endpoint instead of a policy."""
        return f"{self.model}{LABEL_SEPARATOR}{self.base_url}"


def is_endpoint_label(name: str) -> bool:
    """Return whether a record's policy is an endpoint's model, not a folder or Hugging Face id."""
    return f"{LABEL_SEPARATOR}http" in name


def checked_url(endpoint: str) -> str:
    """Return a model endpoint's base URL without a closing slash.

    Raises:
        ConfigError: It is no URL of a model server.
    """
    try:
        parts = urlsplit(endpoint)
        whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        whole = (
            whole and not parts.query and not parts.fragment and not any(map(str.isspace, endpoint))
        )
    except ValueError:  # a port that is no number, half an IPv6 address
        whole = False
    if not whole:
        raise ConfigError(
            f"endpoint {endpoint!r} is no URL of a model server. "
            "Give one such as http://127.0.0.1:8000/v1"
        )
    return endpoint.rstrip("/")


def shown_text(body: bytes) -> str:
    """Return an error's message in one line: the JSON's message if present, else the body."""
    text = body.decode(errors="replace")
    try:
        error = orjson.loads(body)
    except orjson.JSONDecodeError:
        error = None
    for name in ("error", "message", "detail"):
        if isinstance(error, dict) and error.get(name):
            error = error[name]
    if isinstance(error, str):
        text = error
    return " ".join(text.split())[:_DETAIL_CHARS]
