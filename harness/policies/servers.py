"""What serves a policy on this machine; plugins bring it, by device."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from harness.errors import EnvironmentProblem, PluginError, how_to_install

GROUP = "harness.servers"
"""Entry points of classes that follow `Server`, named by device: `cpu`, `cuda` or `npu`."""


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
    """Serves a policy for as long as a `with` block lasts."""

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

        It ends with the block, and with this process however that ends. Use it in the main thread.

        Args:
            model: A local folder or a Hugging Face id.
            device: `cpu`, `cuda` or `npu`.
            max_length: Prompt and response together, in tokens.
            log: Where the server's output goes.
            engine: Its options; by default replies without tool calls, in vLLM's fastest mode.
            port: 0 for a free one.
            name: What callers call the model; by default as it is named here.
            key: What callers have to say; empty: nothing.

        Raises:
            EnvironmentProblem: What the device needs is not installed.
            RunFailed: The server ended before it was ready.
        """


def server(device: str) -> Server:
    """What serves a policy on a device.

    Raises:
        EnvironmentProblem: No plugin here does.
        PluginError: Several do, or the one does not import.
    """
    found = sorted(entry_points(group=GROUP, name=device), key=lambda point: point.value)
    if not found:
        raise EnvironmentProblem(
            f"no plugin here serves a policy on {device}. Install one: {how_to_install('cpu')}"
        )
    if len(found) > 1:
        told = " and ".join(point.value for point in found)
        raise PluginError(f"{told} both serve policies on {device}. Uninstall one of their plugins")
    try:
        made: Server = found[0].load()
    except (ImportError, AttributeError) as error:
        raise PluginError(
            f"{found[0].value}, which serves policies on {device}, failed to import: {error}"
        ) from error
    return made
