"""Everything that the gateway answers instead of a completion, by code.

Recorded on the attempt as a `CallFailure`; its `detail` begins with the code and a colon:

code                    answer  when
upstream_status         theirs  the upstream answered with an error status, forwarded as it is
prompt_too_long         theirs  the same, and what it says is that the prompt does not fit beside the response
upstream_unreachable    502     no connection, or it broke before an answer
upstream_dropped        502     the connection broke in the middle of an answer
upstream_aborted        502     the upstream cut a streamed answer off (a whole one is asked for again)
bad_answer              502     the answer is not a chat completion
no_token_ids            502     token ids or log-probabilities were asked for and are missing
token_count_mismatch    502     there are not as many log-probabilities as token ids
duplicate_response_id   502     the response id was seen before
queue_full              503     too many calls are waiting
no_upstream             503     no upstream is set
connect_timeout         504     the upstream did not accept the connection in time
upstream_timeout        504     the call's time limit passed
attempt_timeout         504     the attempt's deadline passed
attempt_closed          410     the attempt was closed while the call was under way
client_disconnect       499     the agent hung up
bad_request             400     the agent's request is no JSON object with messages, or is nested too deep
body_too_large          413     the agent's request is too long
gateway_error           500     a bug of the gateway; its traceback is on the gateway's stderr

Answered only, for no attempt is known that they could be recorded on:

unauthorized 401, unknown_attempt 404, unknown_role 404, not_found 404, attempt_exists 409,
attempt_closed 410 (late calls), and bad_request, body_too_large and gateway_error of control routes.
"""

from __future__ import annotations

import re

import orjson

TOO_LONG = re.compile(
    rb"context_length_exceeded|maximum context length|prompt is too long|available context size", re.I
)
"""How OpenAI and vLLM, Anthropic, and llama.cpp say that a prompt does not fit."""

STATUS = {
    "upstream_unreachable": 502,
    "upstream_dropped": 502,
    "upstream_aborted": 502,
    "bad_answer": 502,
    "no_token_ids": 502,
    "token_count_mismatch": 502,
    "duplicate_response_id": 502,
    "queue_full": 503,
    "no_upstream": 503,
    "connect_timeout": 504,
    "upstream_timeout": 504,
    "attempt_timeout": 504,
    "attempt_closed": 410,
    "client_disconnect": 499,
    "bad_request": 400,
    "unauthorized": 401,
    "unknown_attempt": 404,
    "unknown_role": 404,
    "not_found": 404,
    "attempt_exists": 409,
    "body_too_large": 413,
    "gateway_error": 500,
}


class Refusal(Exception):
    """A call that ends without a completion.

    Attributes:
        code: A name from the table of this module.
        status: HTTP status that the agent gets.
        upstream_status: HTTP status that the upstream gave, or None if it gave none.
        body: What the agent gets, as JSON.
        headers: Further headers of the answer.
    """

    def __init__(self, code: str, message: str, *, upstream_status: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = STATUS[code]
        self.upstream_status = upstream_status
        self.body = orjson.dumps({"error": {"message": message, "type": "gateway_error", "code": code, "param": None}})
        self.headers: list[tuple[bytes, bytes]] = [(b"content-type", b"application/json")]

    @property
    def detail(self) -> str:
        """One line for the record: the code and what happened."""
        return f"{self.code}: {self}"


def deadline_passed() -> Refusal:
    """Of a call that its attempt's deadline ended."""
    return Refusal("attempt_timeout", "the attempt's deadline passed")


class UpstreamStatus(Refusal):
    """An upstream's error, handed to the agent byte for byte."""

    def __init__(self, status: int, body: bytes, content_type: str, retry_after: str | None) -> None:
        Exception.__init__(self, f"{status} {body[:500].decode(errors='replace')}".strip())
        self.code = "prompt_too_long" if status == 400 and TOO_LONG.search(body) else "upstream_status"
        self.status = self.upstream_status = status
        self.body = body
        self.headers = [(b"content-type", content_type.encode("latin-1"))]
        if retry_after is not None:
            self.headers.append((b"retry-after", retry_after.encode("latin-1")))
