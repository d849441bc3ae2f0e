"""The file that gives verl's processes the addresses of the run's services."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config import validate
from harness.errors import EnvironmentProblem
from harness.gateway.client import GatewayControl
from harness.rollout.queue_plugin import queue_backend
from harness.rollout.request import Phase
from harness.rollout.session import Session
from harness.runs.folder import RunFolder, replace_text

SERVICES_S = 120.0
"""Seconds that the run's services may take to start after verl."""


@dataclass(frozen=True, slots=True)
class SessionFile:
    """Addresses and keys of the run's services for the trainer's processes, in a private file."""

    run_dir: str
    store_url: str
    gateway_url: str
    control_key: str
    model: str
    config: dict[str, Any]
    store_key: str = ""

    def write(self, path: Path) -> None:
        replace_text(
            path, json.dumps({name: getattr(self, name) for name in self.__slots__}), 0o600
        )

    @classmethod
    async def awaited(cls, path: Path, timeout_s: float = SERVICES_S) -> SessionFile:
        """Return the contents once the file exists: verl may be ready before the services are.

        Raises:
            EnvironmentProblem: The file does not appear in time.
        """
        ends = time.monotonic() + timeout_s
        while not path.exists():
            if time.monotonic() > ends:
                raise EnvironmentProblem(
                    f"no {path} after {timeout_s:g} s: "
                    "every node must see the run's folder at the same path"
                )
            await asyncio.sleep(0.05)
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def session(self) -> Session:
        """Return a session over the services that the file names."""
        return Session(
            validate(self.config),
            self.model,
            queue_backend().connect(self.store_url, self.store_key),
            GatewayControl(self.gateway_url, self.control_key),
            RunFolder(Path(self.run_dir)),
        )


def phase_of(extra_info: Mapping[str, object]) -> Phase:
    """Return the phase of a dataset row."""
    return "val" if extra_info["split"] == "val" else "train"
