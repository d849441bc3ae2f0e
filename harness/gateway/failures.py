"""All answers of the gateway other than completions, by code, with their cause.

Recorded on the attempt as a `CallFailure`:

code                    answer  cause          when
upstream_status         theirs  policy_server  the upstream's error status, forwarded unchanged
                                agent          400, 413 or 422, but it accepts the run's parameters
                        429     policy_server  a rate limit that outlasts the attempt's deadline
prompt_too_long         theirs  agent          its message: prompt and response together do not fit
upstream_unreachable    502     policy_server  no connection, or it broke before an answer
upstream_dropped        502     policy_server  the connection broke in the middle of an answer
upstream_aborted        502     policy_server  the upstream cut a stream off (whole ones are retried)
bad_answer              502     policy_server  no chat completion, or an error with status 200
no_token_ids            502     policy_server  requested token ids or log-probabilities are missing
token_count_mismatch    502     policy_server  there are not as many log-probabilities as token ids
duplicate_response_id   502     policy_server  the response id was seen before
queue_full              503     harness        too many waiting calls or open connections
no_upstream             503     harness        no upstream is set
connect_timeout         504     policy_server  the upstream did not accept the connection in time
upstream_timeout        504     policy_server  the call's time limit passed
attempt_timeout         504     deadline       the attempt's deadline passed
attempt_closed          410     agent          the agent ended while the call was under way
client_disconnect       499     agent          the agent hung up
bad_request             400     agent          no JSON object with messages, or nested too deep
                        408     agent          incomplete in time; no answer if the agent ended it
                        431     agent          header too long or too many lines (answered only)
body_too_large          413     agent          the agent's request is too long
too_many_calls          429     agent          the attempt has too many calls under way
gateway_error           500     harness        a bug of the gateway; its stderr has the traceback

Only answered, not recorded, because no attempt is known:

unauthorized 401, unknown_attempt 404, unknown_role 404, not_found 404, attempt_exists 409,
attempt_closed 410 (late calls), and bad_request, body_too_large and gateway_error of control
routes.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from harness.records import Cause
from harness.util.endpoints import shown_text

TOO_LONG = re.compile(
    rb"""
    context_length_exceeded | context_?window_?exceeded | exceed_context_size | tokens_limit_reached
    | (?:maximum | available | model'?s ) \s context \s (?:length | size | window)
    | (?:prompt | input | context | conversation) s? (?:\s tokens)? \s (?:is | are | was) \s too \s (?:long | large)
    | too \s many \s (?:input | prompt) \s tokens
    | (?:longer | larger | greater) \s than \s (?:the \s)? (?:model'?s? \s)? (?:max(?:imum)?[ ])?
      (?:context | model | input | prompt | sequence | max_model_len | max_seq_len)
    | exceed(?:s | ed | ing)? \s (?:the \s)? (?:model'?s? \s)? (?:max(?:imum)? \s)? (?:allowed \s)?
      (?:context | prompt | input | sequence) [\s_-]? (?:length | window | size | limit | len)
    | exceed(?:s | ed | ing)? \s (?:the \s)? maximum \s number \s of \s (?:input \s)? tokens
    | maximum \s (?:prompt | input | sequence | model) \s length
    | reduce \s the \s length \s of \s (?:the | your) \s (?:input | prompt | messages)
    | range \s of \s input \s length
    | `inputs` [^.]{0,40} must \s (?:be | have)
    | max_(?:completion_)?tokens \s must \s be \s at \s least \s 1, \s got \s -
    """,
    re.I | re.X,
)
"""How OpenAI, vLLM, SGLang, Anthropic, llama.cpp, TGI and others say that a prompt does not fit."""

MAY_BE_LENGTH = re.compile(rb"token|length|context|long|large|size|exceed|limit|maxim", re.I)
"""Words that may refuse a prompt's length. The gateway then probes with a short prompt."""

RATE_LIMIT = re.compile(rb"rate.?limit|too many requests|per (?:second|minute|hour|day)\b", re.I)
NO_QUOTA = re.compile(rb"insufficient_quota|quota|billing|credit|balance", re.I)
"""Limits that no wait within an attempt ends."""

_NEVER_LENGTH = frozenset({401, 402, 403, 404, 405, 408, 409, 429})
"""Statuses with another meaning, whatever the text is."""
_STATUS_OF = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "invalid_request_error": 400,
    "badrequesterror": 400,
    "bad_request": 400,
}
"""Statuses by the code or type of an error that came with status 200."""

KNOWN: dict[str, tuple[int, Cause]] = {
    "upstream_unreachable": (502, "policy_server"),
    "upstream_dropped": (502, "policy_server"),
    "upstream_aborted": (502, "policy_server"),
    "bad_answer": (502, "policy_server"),
    "no_token_ids": (502, "policy_server"),
    "token_count_mismatch": (502, "policy_server"),
    "duplicate_response_id": (502, "policy_server"),
    "queue_full": (503, "harness"),
    "no_upstream": (503, "harness"),
    "connect_timeout": (504, "policy_server"),
    "upstream_timeout": (504, "policy_server"),
    "attempt_timeout": (504, "deadline"),
    "attempt_closed": (410, "agent"),
    "client_disconnect": (499, "agent"),
    "bad_request": (400, "agent"),
    "unauthorized": (401, "agent"),
    "unknown_attempt": (404, "agent"),
    "unknown_role": (404, "agent"),
    "not_found": (404, "agent"),
    "attempt_exists": (409, "harness"),
    "body_too_large": (413, "agent"),
    "too_many_calls": (429, "agent"),
    "gateway_error": (500, "harness"),
}
"""Status and cause by code, without those that forward the upstream's status."""


class Refusal(Exception):
    """A call that ends without a completion.

    Attributes:
        code: A name from the table of this module.
        cause: The party that caused it.
        status: HTTP status that the agent gets.
        upstream_status: HTTP status of the upstream's answer, or None if there was none.
        body: The answer to the agent, as JSON.
        headers: Further headers of the answer.
    """

    def __init__(self, code: str, message: str, *, upstream_status: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status, self.cause = KNOWN[code]
        self.upstream_status = upstream_status
        self.body = orjson.dumps(
            {"error": {"message": message, "type": "gateway_error", "code": code, "param": None}}
        )
        self.headers: list[tuple[bytes, bytes]] = [(b"content-type", b"application/json")]

    @property
    def detail(self) -> str:
        """One line for the record: the code and what happened."""
        return f"{self.code}: {self}"


def deadline_passed(more: str = "") -> Refusal:
    """Return the refusal of a call ended by its attempt's deadline; `more` is added to its text."""
    return Refusal("attempt_timeout", f"the attempt's deadline passed{more}")


class UpstreamStatus(Refusal):
    """An upstream's error, passed to the agent byte for byte.

    Attributes:
        blames_request: Whether the status means that the request is invalid.
        may_be_length: Whether the message may mean that the prompt is too long, in unknown words.
        asks_to_wait: Whether the same request may succeed later.
        retry_after_s: Seconds to wait, as named by the upstream; None if it names none.
    """

    def __init__(
        self,
        status: int,
        body: bytes,
        content_type: str,
        retry_after: str | None,
        answered_with: int | None = None,
    ) -> None:
        Exception.__init__(self, f"{status} {shown_text(body)}".strip())
        # A limit on tokens per minute also mentions too many tokens, but is no length limit.
        limited = RATE_LIMIT.search(body) is not None
        length = status not in _NEVER_LENGTH and not limited
        too_long = length and TOO_LONG.search(body) is not None
        self.code = "prompt_too_long" if too_long else "upstream_status"
        self.cause = "agent" if too_long else "policy_server"
        self.blames_request = not too_long and status in (400, 413, 422)
        self.may_be_length = (
            length and self.blames_request and MAY_BE_LENGTH.search(body) is not None
        )
        self.retry_after_s = None if retry_after is None else _seconds(retry_after)
        waits = status == 429 or (status in (503, 529) and self.retry_after_s is not None)
        # An exhausted quota has status 429 too, and no wait helps.
        self.asks_to_wait = waits and not NO_QUOTA.search(body)
        self.status = status
        self.upstream_status = status if answered_with is None else answered_with
        self.body = body
        self.headers = [(b"content-type", content_type.encode("latin-1"))]
        if retry_after is not None:
            self.headers.append((b"retry-after", retry_after.encode("latin-1")))

    def call_too_long(self) -> None:
        """Treat the refusal as that of a prompt that does not fit."""
        self.code, self.cause = "prompt_too_long", "agent"


def error_in(answer: Mapping[str, Any], raw: bytes) -> Refusal | None:
    """Return the error that an answer with status 200 reports, or None."""
    error = _reported(answer)
    if error is None:
        return None
    status = _status_of(error)
    # Without a status, only the words of a length error show that the agent caused it.
    if status is None and TOO_LONG.search(raw):
        status = 400
    if status is not None:
        return UpstreamStatus(status, raw, "application/json", None, answered_with=200)
    message = f"the upstream answered with an error: {shown_text(raw)}"
    return Refusal("bad_answer", message, upstream_status=200)


def _reported(answer: Mapping[str, Any]) -> Any:
    """Return an answer's error, which may be in its first choice or replace the completion."""
    if answer.get("error"):
        return answer["error"]
    if answer.get("object") == "error":
        return answer
    choices = answer.get("choices")
    if isinstance(choices, list) and choices:
        first = choices[0] if isinstance(choices[0], dict) else {}
        return first.get("error") or None
    if choices is None:
        named = ("errors", "detail", "message", "error_msg", "msg")
        return answer if any(answer.get(name) for name in named) else None
    return None


def _status_of(error: object) -> int | None:
    """Return the HTTP status of an error, named by number or by type."""
    if not isinstance(error, dict):
        return None
    for name in ("code", "status", "status_code", "type"):
        value = error.get(name)
        if isinstance(value, str):
            value = (
                int(value) if value.isascii() and value.isdigit() else _STATUS_OF.get(value.lower())
            )
        if type(value) is int and 400 <= value < 600:
            return value
    return None


def _seconds(retry_after: str) -> float | None:
    """Return the seconds of a `Retry-After`, a number or a date; None if it is neither."""
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, TypeError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
