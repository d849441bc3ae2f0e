"""Check model endpoints before a run starts, and state what to change if one cannot answer."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness.errors import UserError, nearest
from harness.records import CHECK_HEADER
from harness.util.endpoints import shown_text
from harness.util.formatting import shortened

if TYPE_CHECKING:
    import httpx

CONNECT_S = 2.0
"""Seconds for a server to accept a connection."""
LIST_S = 10.0
"""Seconds for it to list its models."""
COMPLETION_S = 60.0
"""Seconds for one token. A slower server may be loading its model and is not refused."""
SHOWN_MODELS = 8
"""Most names of models in a message."""
SHOWN_CHARS = 300
"""Most characters of a server's own message in a message."""


@dataclass(frozen=True, slots=True)
class CheckedEndpoint:
    """An endpoint that answered.

    Attributes:
        model: The model that was named, else the first that the server lists.
        offered: All names of models that the server lists; empty where it lists none.
    """

    base_url: str
    model: str
    api_key: str | None = field(repr=False)
    offered: tuple[str, ...] = ()


def checked_endpoint(
    base_url: str, model: str | None, api_key: str | None, key_variable: str
) -> CheckedEndpoint:
    """Ask an endpoint for its models and for one token, and return it if it answers.

    Args:
        base_url: Without a closing slash.
        model: None: the first that the server lists.
        key_variable: The environment variable that the key comes from.

    Raises:
        UserError: It does not answer, refuses the key, has another path, or has no such model. The
            message says what to change.
    """
    import httpx

    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    look = _Look(base_url, api_key is not None, key_variable)
    with httpx.Client(headers=headers, trust_env=False) as client:
        offered = look.models(client)
        if model is None:
            if not offered:
                raise UserError(f"{base_url} does not list its models. Name one: --model NAME")
            model = offered[0]
        look.one_token(client, model, offered)
    return CheckedEndpoint(base_url, model, api_key, offered)


@dataclass(frozen=True, slots=True)
class _Look:
    """The check of one endpoint."""

    base_url: str
    has_key: bool
    key_variable: str

    def models(self, client: httpx.Client) -> tuple[str, ...]:
        """Return the names of the models that the server lists; empty if it has no list."""
        import httpx

        try:
            answer = client.get(f"{self.base_url}/models", timeout=_timeout(LIST_S))
        except httpx.HTTPError as error:
            raise UserError(self._unreachable(error)) from error
        self._check_key(answer)
        if answer.status_code == 404 and not self.base_url.endswith("/v1"):
            self._check_path(client)
        # Some servers answer completions but have no list of models.
        if answer.status_code != 200:
            return ()
        try:
            return tuple(_names(answer.json()))
        except ValueError:
            return ()

    def one_token(self, client: httpx.Client, model: str, offered: tuple[str, ...]) -> None:
        """Ask for one token of a model."""
        import httpx

        request = {
            "model": model,
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 1,
        }
        try:
            answer = client.post(
                f"{self.base_url}/chat/completions",
                json=request,
                headers={CHECK_HEADER: "1"},
                timeout=_timeout(COMPLETION_S),
            )
        except httpx.ReadTimeout:
            # A model that is slow, or is being loaded, is no reason to refuse the run.
            return
        except httpx.HTTPError as error:
            raise UserError(self._unreachable(error)) from error
        self._check_key(answer)
        # A rate limit is no fault of the server; runs repeat such calls.
        if answer.is_success or answer.status_code == 429:
            return
        reason = _reason(answer)
        if offered and model not in offered:
            raise UserError(
                f"{self.base_url} has no model {model!r} ({reason}). "
                f"It offers {_listed(offered)}: --model NAME{nearest(model, offered)}"
            )
        if answer.status_code == 404:
            hint = "" if self.base_url.endswith("/v1") else ", which usually ends in /v1,"
            base, _, path = self.base_url.partition("/v1/")
            if path:
                hint = f" to {base}/v1, without /{path},"
            raise UserError(
                f"{self.base_url}/chat/completions answers HTTP 404 ({reason}). "
                f"Correct the URL{hint} or the model {model!r}"
            )
        raise UserError(
            f"{self.base_url} answers one tiny request to {model!r} "
            f"with HTTP {answer.status_code}: {reason}. "
            "See the server's log, or name another --model"
        )

    def _check_key(self, answer: httpx.Response) -> None:
        if answer.status_code not in (401, 403):
            return
        status = answer.status_code
        if self.has_key:
            raise UserError(
                f"{self.base_url} refuses the key in {self.key_variable} (HTTP {status}). "
                f"Correct {self.key_variable}, or name another variable: --api-key-env NAME"
            )
        raise UserError(
            f"{self.base_url} asks for a key (HTTP {status}), and {self.key_variable} is not set. "
            f"Set {self.key_variable}, or name another variable: --api-key-env NAME"
        )

    def _check_path(self, client: httpx.Client) -> None:
        """Refuse a URL that only lacks its `/v1`."""
        import httpx

        try:
            answer = client.get(f"{self.base_url}/v1/models", timeout=_timeout(LIST_S))
        except httpx.HTTPError:
            return
        if answer.status_code in (200, 401, 403):
            raise UserError(
                f"{self.base_url} has no model API (HTTP 404), but {self.base_url}/v1 has. "
                f"Give --endpoint {self.base_url}/v1"
            )

    def _unreachable(self, error: httpx.HTTPError) -> str:
        """Return why a server cannot be reached, in one line that says what to change."""
        import httpx

        if isinstance(error, httpx.ConnectTimeout):
            reason = f"no connection within {CONNECT_S:g} s"
        elif isinstance(error, httpx.ReadTimeout):
            reason = f"it took the connection and did not answer within {LIST_S:g} s"
        elif isinstance(error.__context__, ssl.SSLError) or "SSL" in str(error):
            reason = str(error)
            if self.base_url.startswith("https://"):
                plain = self.base_url.replace("https://", "http://", 1)
                return f"no TLS at {self.base_url} ({reason}). A plain server: --endpoint {plain}"
        else:
            reason = str(error) or type(error).__name__
        return (
            f"no model server answers at {self.base_url} ({reason}). "
            "Start one (`harness serve POLICY`), or correct --endpoint"
        )


def _timeout(seconds: float) -> httpx.Timeout:
    import httpx

    return httpx.Timeout(seconds, connect=CONNECT_S)


def _names(listed: Any) -> Iterator[str]:
    """Yield the names in an answer of `GET /models`; none where it has another form."""
    rows = listed.get("data") if isinstance(listed, Mapping) else None
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, Mapping) and isinstance(row.get("id"), str):
            yield row["id"]


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - SHOWN_MODELS} more" if len(names) > SHOWN_MODELS else ""
    return ", ".join(names[:SHOWN_MODELS]) + more


def _reason(answer: httpx.Response) -> str:
    """Return a server's own message in one line, cut to a bounded length."""
    line = shortened(shown_text(answer.content), SHOWN_CHARS, kept=SHOWN_CHARS)
    return line or "no message"
