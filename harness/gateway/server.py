"""Runs the gateway in a process of its own."""

from __future__ import annotations

import dataclasses
import json
import logging
import secrets
import select
import subprocess
import sys
import time
from types import TracebackType
from typing import Any, Self

from harness.errors import EnvironmentProblem
from harness.gateway.client import GatewayControl, agent_url
from harness.gateway.settings import GatewaySettings

log = logging.getLogger(__name__)


class GatewayServer:
    """A gateway process with its own keys. It ends with `stop`, or when this process ends.

    Args:
        host: Address to bind; loopback unless runners live on other machines.
        port: Port to bind; 0 picks a free one.
        **bounds: Further fields of `GatewaySettings`, for example `upstream_concurrency=512`.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, **bounds: Any) -> None:
        self.key = "sk-" + secrets.token_urlsafe(24)
        self.control_key = "ck-" + secrets.token_urlsafe(24)
        self._settings = GatewaySettings(self.key, self.control_key, host, port, **bounds)
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def base_url(self) -> str:
        """Where it listens, for example `http://127.0.0.1:43117`. Known once started."""
        host = self._settings.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self._port}"

    @property
    def pid(self) -> int | None:
        """The id of the process, or None if it is not running."""
        return (
            self._process.pid
            if self._process is not None and self._process.poll() is None
            else None
        )

    @property
    def ended(self) -> str | None:
        """How the process ended without `stop`; None while it runs."""
        if self._process is None or (status := self._process.poll()) is None:
            return None
        return f"the gateway (process {self._process.pid}) ended with status {status}"

    def start(self, timeout_s: float = 60.0) -> Self:
        """Start the process and wait until it answers.

        Raises:
            EnvironmentProblem: It could not listen, or was not ready in time.
        """
        process = subprocess.Popen(
            [sys.executable, "-m", "harness.gateway"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # The parent handles Ctrl-C, because it has to close its attempts first.
            start_new_session=True,
        )
        self._process = process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(dataclasses.asdict(self._settings)).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass
        ready, _, _ = select.select([process.stdout], [], [], timeout_s)
        line = process.stdout.readline() if ready else b""
        if not line:
            status = process.wait(5) if ready else None
            self.stop()
            reason = (
                f"ended with status {status}" if ready else f"was not ready within {timeout_s:g} s"
            )
            where = f"{self._settings.host}:{self._settings.port}"
            raise EnvironmentProblem(
                f"the gateway on {where} {reason}; see its message above, or choose another port"
            )
        self._port = int(json.loads(line)["port"])
        log.info("gateway %d listens on %s", process.pid, self.base_url)
        return self

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the process, and with it the calls in progress. Safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        began = time.monotonic()
        process.terminate()
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        log.info("gateway %d ended within %.2f s", process.pid, time.monotonic() - began)

    def agent_url(self, rollout_id: str, attempt_id: str, role: str) -> str:
        """The OpenAI `base_url` for one role of one attempt."""
        return agent_url(self.base_url, rollout_id, attempt_id, role)

    def control(self) -> GatewayControl:
        """Return a new client of the control routes."""
        return GatewayControl(self.base_url, self.control_key)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
