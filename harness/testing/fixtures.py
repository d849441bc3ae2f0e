"""pytest fixtures of `harness.testing`.

Enable them with `pytest_plugins = ["harness.testing.fixtures"]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from harness.mock_model.server import Script, ScriptedServer

StartServer = Callable[..., ScriptedServer]


@pytest.fixture
def scripted_server() -> Iterator[StartServer]:
    """Start scripted servers, as `scripted_server(["reply"], token_ids=False)`, and stop them."""
    yield from _starting()


@pytest.fixture(scope="session")
def scripted_server_factory() -> Iterator[StartServer]:
    """Start them for fixtures of a class, module or session, such as a contract's `options`.

    They stop with the session.
    """
    yield from _starting()


def _starting() -> Iterator[StartServer]:
    with ExitStack() as servers:

        def start(script: Script, **options: Any) -> ScriptedServer:
            return servers.enter_context(ScriptedServer(script, **options))

        yield start
