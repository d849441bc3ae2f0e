"""Protocols other than chat completions: convert requests to chat completions and answers back."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Protocol

import orjson

from harness.gateway.failures import Refusal

logger = logging.getLogger(__name__)
Json = dict[str, Any]
Given = Mapping[str, Any]
"""JSON objects that are created here and only read afterwards."""


def given(arguments: str) -> Json:
    """Return a tool call's arguments as an object, or `{"": text}` if they are no JSON object."""
    try:
        value = orjson.loads(arguments)
        orjson.dumps(value)  # orjson reads deeper nesting than it writes
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        value = None
    return value if isinstance(value, dict) else {"": arguments}


class Written:
    """The text of an attempt's tool call arguments as the policy wrote them.

    Parsed objects lose the original spelling.
    """

    def __init__(self) -> None:
        self._texts: dict[tuple[str, bytes], str] = {}

    def note(self, calls: Iterable[Given]) -> None:
        """Tool calls of an answer."""
        for call in calls:
            arguments = call["function"]["arguments"]
            self._texts[call["id"], orjson.dumps(given(arguments))] = arguments

    def text(self, call_id: str, arguments: Given) -> str:
        """Return the text that the policy wrote for this call, else plain JSON."""
        plain = orjson.dumps(arguments)
        return self._texts.get((call_id, plain), plain.decode())


class ApiProtocol(Protocol):
    """Convert between a protocol and chat completions. Created once per process, without arguments.

    Forcing, seeds, token ids and records are those of chat completions. The policy's answer is
    complete before the client receives any part of it, even if the client requests a stream.
    """

    def asked(self, body: Given, written: Written) -> Json:
        """Return the equivalent chat completion request, never streamed.

        Args:
            written: The attempt's earlier tool calls, for a protocol that shows arguments to
                clients in another form.

        Raises:
            ValueError: Chat completions cannot express the request; the message names the part.
        """

    def reply(self, body: Given, completion: Given) -> Json:
        """Return the answer in the protocol's form."""

    def events(self, reply: Given) -> Iterator[tuple[str, Json]]:
        """Yield the same answer as server-sent events: names and data."""

    def refused(self, error: Given) -> Json:
        """Convert an error from the form of chat completions (`{"error": {"message", ...}}`)."""


class BrokenProtocol:
    """Refuse every call, in place of a protocol that cannot be created."""

    def __init__(self, problem: str) -> None:
        self._problem = problem

    def asked(self, body: Given, written: Written) -> Json:
        """Refuse the call with the problem."""
        raise ValueError(self._problem)

    def reply(self, body: Given, completion: Given) -> Json:
        """Return the answer unchanged; never called, since every call is refused."""
        return dict(completion)

    def events(self, reply: Given) -> Iterator[tuple[str, Json]]:
        """Yield nothing; never called, since every call is refused."""
        return iter(())

    def refused(self, error: Given) -> Json:
        """Return the error in the form of chat completions."""
        return dict(error)


@cache
def protocols() -> Mapping[str, ApiProtocol]:
    """Return all protocols by their path below `/v1/`.

    Looked up once, so that an unknown path costs nothing and is not cached. The registry is
    imported by the first call in a protocol, so that a gateway without such calls stays small.
    """
    from harness.plugins import load, registry

    by_path: dict[str, ApiProtocol] = {}
    for spec in registry().specs("protocol"):
        try:
            by_path[spec.name] = load(spec)()
        except Exception as error:  # the other protocols must work
            problem = f"protocol {spec.name!r} of {registry().origin(spec)} is broken: {error}"
            logger.error("%s", problem)
            by_path[spec.name] = BrokenProtocol(problem)
    return by_path


class Spoken:
    """One call in a protocol."""

    def __init__(self, protocol: ApiProtocol, written: Written) -> None:
        self._protocol = protocol
        self._written = written
        self._body: Given = {}

    def asked(self, body: Given) -> Json:
        """Return the call's chat completion request.

        Raises:
            Refusal: Chat completions cannot express the request.
        """
        self._body = body
        try:
            return self._protocol.asked(body, self._written)
        except ValueError as error:
            raise Refusal("bad_request", str(error)) from error
        except KeyError as error:
            raise Refusal("bad_request", f"the body lacks {error}, or a part of it does") from error
        except (TypeError, AttributeError) as error:
            raise Refusal(
                "bad_request", f"a field of the body has a value of the wrong type: {error}"
            ) from error

    def answered(self, completion: Given) -> tuple[bytes, bool]:
        """Return the body of the answer, and whether it is a stream of events."""
        self._written.note(completion["choices"][0]["message"].get("tool_calls") or ())
        reply = self._protocol.reply(self._body, completion)
        if not self._body.get("stream"):
            return orjson.dumps(reply), False
        events = []
        for name, data in self._protocol.events(reply):
            events.append(b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(data)))
        return b"".join(events), True

    def refused(self, body: bytes) -> bytes:
        """Return the body of an error. It is no JSON if the upstream's error was none."""
        try:
            error = orjson.loads(body)
        except orjson.JSONDecodeError:
            error = {"error": {"message": body.decode(errors="replace")}}
        return orjson.dumps(self._protocol.refused(error))
