"""Fixtures of the whole suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from harness.gateway.client import GatewayControl
from harness.gateway.server import GatewayServer

pytest_plugins = ["harness.testing.fixtures"]


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayServer]:
    """A real gateway process for the module's tests."""
    with GatewayServer() as server:
        yield server


@pytest_asyncio.fixture
async def control(gateway: GatewayServer) -> AsyncIterator[GatewayControl]:
    async with gateway.control() as client:
        yield client
