"""Everything that the gateway answers instead of a completion, by code, and who brought it about.

Recorded on the attempt as a `CallFailure`:

code                    answer  cause          when
upstream_status         theirs  policy_server  the upstream answered with an error status, forwarded as it is
                                agent          400, 413 or 422, though the upstream takes what the run itself sends
prompt_too_long         theirs  agent          what it says is that the prompt does not fit beside the response
upstream_unreachable    502     policy_server  no connection, or it broke before an answer
upstream_dropped        502     policy_server  the connection broke in the middle of an answer
upstream_aborted        502     policy_server  the upstream cut a streamed answer off (a whole one is asked for again)
bad_answer              502     policy_server  the answer is not a chat completion
no_token_ids            502     policy_server  token ids or log-probabilities were asked for and are missing
token_count_mismatch    502     policy_server  there are not as many log-probabilities as token ids
duplicate_response_id   502     policy_server  the response id was seen before
queue_full              503     harness        too many calls are waiting, or too many connections are open
no_upstream             503     harness        no upstream is set
connect_timeout         504     policy_server  the upstream did not accept the connection in time
upstream_timeout        504     policy_server  the call's time limit passed
attempt_timeout         504     deadline       the attempt's deadline passed
attempt_closed          410     agent          the agent ended while the call was under way
client_disconnect       499     agent          the agent hung up
bad_request             400     agent          the agent's request is no JSON object with messages, or nested too deep
                        408     agent          it was not whole in time; without an answer where its agent ended it
                        431     agent          its header is too long, or has too many lines (answered only)
body_too_large          413     agent          the agent's request is too long
too_many_calls          429     agent          the attempt has too many calls under way
gateway_error           500     harness        a bug of the gateway; its traceback is on the gateway's stderr

Answered only, for no attempt is known that they could be recorded on:

unauthorized 401, unknown_attempt 404, unknown_role 404, not_found 404, attempt_exists 409,
attempt_closed 410 (late calls), and bad_request, body_too_large and gateway_error of control routes.
"""

from __future__ import annotations

import re

import orjson

from harness.records import Cause

TOO_LONG = re.compile(
    rb"context_length_exceeded|maximum context length|prompt is too long|available context size",
    re.I,
)
"""How OpenAI and vLLM, Anthropic, and llama.cpp say that a prompt does not fit."""

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
"""Status and cause by code, but for those that hand on the upstream's status."""


class Refusal(Exception):
    """A call that ends without a completion.

    Attributes:
        code: A name from the table of this module.
        cause: Who brought it about.
        status: HTTP status that the agent gets.
        upstream_status: HTTP status that the upstream gave, or None if it gave none.
        body: What the agent gets, as JSON.
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


def deadline_passed() -> Refusal:
    """Of a call that its attempt's deadline ended."""
    return Refusal("attempt_timeout", "the attempt's deadline passed")


class UpstreamStatus(Refusal):
    """An upstream's error, handed to the agent byte for byte.

    Attributes:
        blames_request: Whether the status says that something is wrong with the request.
    """

    def __init__(
        self, status: int, body: bytes, content_type: str, retry_after: str | None
    ) -> None:
        Exception.__init__(self, f"{status} {body[:500].decode(errors='replace')}".strip())
        too_long = status == 400 and TOO_LONG.search(body)
        self.code = "prompt_too_long" if too_long else "upstream_status"
        self.cause = "agent" if too_long else "policy_server"
        self.blames_request = not too_long and status in (400, 413, 422)
        self.status = self.upstream_status = status
        self.body = body
        self.headers = [(b"content-type", content_type.encode("latin-1"))]
        if retry_after is not None:
            self.headers.append((b"retry-after", retry_after.encode("latin-1")))
