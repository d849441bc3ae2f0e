"""Carry out calls of a domain's tools: one JSON object per line in, one out.

Ends with the parent process.

    python -m harness_tau2.worker FOLDER DOMAIN

`do` is `describe` or `tasks`, or of a session `open`, `call` or `close`; `messages` has the other
keys.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
from pathlib import Path

from harness_tau2.worker.domain import Domain
from harness_tau2.worker.gold import tasks
from harness_tau2.worker.messages import Answer, Request
from harness_tau2.worker.standins import StoreModel, install


class Desk:
    """The sessions of a domain, by the names that the parent gives them."""

    def __init__(self, domain: Domain) -> None:
        self._domain = domain
        self._tools = domain.definitions()
        self._sessions: dict[str, StoreModel] = {}

    def answer(self, request: Request) -> Answer:
        """Return the answer to one line."""
        match request["do"]:
            case "describe":
                return {"tools": self._tools}
            case "tasks":
                return {"tasks": tasks(self._domain)}
            case "open":
                self._sessions[request["session"]] = self._domain.session()
                return {"tools": self._tools}
            case "close":
                return {"changes": self._domain.changes(self._sessions.pop(request["session"]))}
            case "call":
                session = self._sessions[request["session"]]
                text, ok = self._domain.call(session, request["tool"], request["arguments"])
                limit = request["max_chars"]
                if len(text) > limit:
                    text = f"{text[:limit]}\n... ({len(text):,} characters in all)"
                return {"text": text, "ok": ok}
        raise ValueError(f"{request['do']!r} is no known request")


def main(folder: str, domain: str) -> None:
    """Answer requests until the input ends."""
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # tools may print
        install(Path(folder))
        desk = Desk(Domain(Path(folder), domain))
        gc.freeze()
        # It would scan all databases repeatedly. Reference counting frees the sessions.
        gc.disable()
        for line in sys.stdin:
            request: Request = json.loads(line)
            try:
                answer: Answer = desk.answer(request)
            except Exception as error:
                answer = {"fault": f"{type(error).__name__}: {error}"[:300]}
            out.write(json.dumps({"id": request["id"], **answer}) + "\n")
            out.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
