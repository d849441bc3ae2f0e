"""Servers of policies on this machine, which plugins provide by device."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness import plugins
from harness.contracts.hookspecs import PolicyServerSpec
from harness.errors import EnvironmentProblem, PluginError, how_to_install


@dataclass(frozen=True, slots=True)
class Engine:
    """Options of the engine that computes a policy's replies.

    Attributes:
        parser: vLLM's name of the form of tool calls, where requests offer tools.
        batch_invariant: Compute each reply independently of the other calls in its batch (vLLM on
            CUDA devices).
    """

    parser: str = ""
    batch_invariant: bool = False


DEFAULT_ENGINE = Engine()


class Server(Protocol):
    """Serves a policy within a `with` block."""

    def __call__(
        self,
        model: str,
        device: str,
        max_length: int,
        log: Path,
        engine: Engine = DEFAULT_ENGINE,
        *,
        port: int = 0,
        name: str = "",
        key: str = "",
    ) -> AbstractContextManager[str]:
        """Serve a policy and yield its base URL: OpenAI-compatible, ends in `/v1`, has token ids.

        It ends with the block, and with this process in any case. Use it in the main thread.

        Args:
            model: A local folder or a Hugging Face id.
            device: `cpu`, `cuda` or `npu`.
            max_length: Prompt and response together, in tokens.
            log: File for the server's output.
            engine: Its options; by default replies without tool calls, in vLLM's fastest mode.
            port: 0 for a free one.
            name: Name of the model for clients; by default `model`.
            key: Key that clients must send; empty: none.

        Raises:
            EnvironmentProblem: What the device needs is not installed.
            RunFailed: The server ended before it was ready.
        """


def server(device: str) -> Server:
    """Return the server of policies on a device.

    Raises:
        EnvironmentProblem: No installed plugin does.
        PluginError: Several do, or the one does not import.
    """
    servers = []
    for spec in plugins.registry().specs("policy server"):
        if isinstance(spec, PolicyServerSpec) and device in spec.devices:
            servers.append(spec)
    if not servers:
        raise EnvironmentProblem(
            f"no plugin here serves a policy on {device}. Install one: {how_to_install('cpu')}"
        )
    if len(servers) > 1:
        names = " and ".join(spec.target for spec in servers)
        raise PluginError(
            f"{names} both serve policies on {device}. Uninstall one of their plugins"
        )
    made: Server = plugins.load(servers[0])
    return made
