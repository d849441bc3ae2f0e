"""Carry out calls of a domain's tools: one JSON object per line in, one out.

Ends with the parent process.

    python -m harness_tau2.side FOLDER DOMAIN

`do` is `describe` or `tasks`, or of a session `open`, `call` or `close`; `messages` has the other
keys.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
from pathlib import Path

from harness_tau2.side.domain import Domain
from harness_tau2.side.gold import tasks
from harness_tau2.side.messages import Answer, Asked
from harness_tau2.side.standins import StoreModel, install


class Desk:
    """The sessions of a domain, by the names that the parent gives them."""

    def __init__(self, domain: Domain) -> None:
        self._domain = domain
        self._tools = domain.definitions()
        self._sessions: dict[str, StoreModel] = {}

    def answer(self, asked: Asked) -> Answer:
        """Return the answer to one line."""
        match asked["do"]:
            case "describe":
                return {"tools": self._tools}
            case "tasks":
                return {"tasks": tasks(self._domain)}
            case "open":
                self._sessions[asked["session"]] = self._domain.session()
                return {"tools": self._tools}
            case "close":
                return {"changes": self._domain.changes(self._sessions.pop(asked["session"]))}
            case "call":
                session = self._sessions[asked["session"]]
                text, ok = self._domain.call(session, asked["tool"], asked["arguments"])
                if len(text) > (most := asked["max_chars"]):
                    text = f"{text[:most]}\n... ({len(text):,} characters in all)"
                return {"text": text, "ok": ok}
        raise ValueError(f"{asked['do']!r} is no known request")


def main(folder: str, domain: str) -> None:
    """Answer requests until the input ends."""
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # tools may print
        install(Path(folder))
        desk = Desk(Domain(Path(folder), domain))
        gc.freeze()
        gc.disable()  # it would scan all databases repeatedly; sessions are freed by reference counting
        for line in sys.stdin:
            asked: Asked = json.loads(line)
            try:
                said: Answer = desk.answer(asked)
            except Exception as error:
                said = {"fault": f"{type(error).__name__}: {error}"[:300]}
            out.write(json.dumps({"id": asked["id"], **said}) + "\n")
            out.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
