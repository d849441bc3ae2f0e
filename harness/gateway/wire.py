"""Bytes of answers: JSON, and server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import orjson

from harness.gateway.failures import Refusal


def split_events(buffer: bytearray) -> Iterator[bytes]:
    """Remove the complete server-sent events from a buffer, each with its closing empty line."""
    while True:
        # Both forms may occur in one buffer, and the first one ends the event.
        plain, with_returns = buffer.find(b"\n\n"), buffer.find(b"\r\n\r\n")
        if plain < 0 and with_returns < 0:
            return
        if with_returns < 0 or 0 <= plain < with_returns:
            end = plain + 2
        else:
            end = with_returns + 4
        event = bytes(buffer[:end])
        del buffer[:end]
        yield event


def event_data(event: bytes) -> bytes | None:
    """Return the data of a server-sent event, or None for a comment."""
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def parse(raw: bytes) -> dict[str, Any]:
    """Return the JSON object of an answer or of an event.

    Raises:
        Refusal: `bad_answer`: it is none.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        value = _parse_with_bad_text(raw)
        if value is None:
            message = f"the answer is not JSON ({error}): {raw[:200].decode(errors='replace')!r}"
            raise Refusal("bad_answer", message, upstream_status=200) from error
    if not isinstance(value, dict):
        raise Refusal("bad_answer", "the answer is not a JSON object", upstream_status=200)
    return value


def _parse_with_bad_text(raw: bytes) -> Any:
    """Return JSON with invalid UTF-8 and lone surrogates in its texts replaced."""
    try:
        value = json.loads(raw.decode(errors="replace"))
        text = json.dumps(value, ensure_ascii=False)
        return orjson.loads(text.encode("utf-8", "surrogatepass").decode(errors="replace"))
    except (ValueError, RecursionError):
        return None


def written(answer: dict[str, Any]) -> bytes:
    """Return an answer as JSON.

    Raises:
        Refusal: `bad_answer`: it is nested too deep.
    """
    try:
        return orjson.dumps(answer)
    except orjson.JSONEncodeError as error:  # orjson reads deeper nesting than it writes
        raise Refusal(
            "bad_answer", f"the answer cannot be passed on: {error}", upstream_status=200
        ) from error
