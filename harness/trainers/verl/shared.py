"""What verl's processes know of the run's services, and the session that each of them shares."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config import validate
from harness.gateway.client import GatewayControl
from harness.results.folder import RunFolder
from harness.rollout.request import Phase
from harness.rollout.session import Session


@dataclass(frozen=True, slots=True)
class SessionFile:
    """What the trainer's processes are told of the run's services (a file only its owner can read)."""

    run_dir: str
    store_url: str
    gateway_url: str
    control_key: str
    model: str
    config: dict[str, Any]

    def write(self, path: Path) -> None:
        path.touch(mode=0o600)
        path.write_text(json.dumps({name: getattr(self, name) for name in self.__slots__}))

    @classmethod
    def read(cls, path: Path) -> SessionFile:
        return cls(**json.loads(path.read_text()))

    def session(self) -> Session:
        """A session over the services that the file names."""
        from harness.rollout.store import StoreClient

        return Session(
            validate(self.config),
            self.model,
            StoreClient(self.store_url),
            GatewayControl(self.gateway_url, self.control_key),
            RunFolder(Path(self.run_dir)),
        )


_shared: dict[str, Session] = {}


def shared_session(path: str) -> Session:
    """This process's session for a session file."""
    if path not in _shared:
        _shared[path] = SessionFile.read(Path(path)).session()
    return _shared[path]


def phase_of(extra_info: Mapping[str, Any]) -> Phase:
    """Which phase a dataset row belongs to."""
    return "val" if extra_info["split"] == "val" else "train"
