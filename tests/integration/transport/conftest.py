"""Every test that takes `net` runs over gRPC with TLS and over its twin in memory."""

from collections.abc import AsyncIterator

import pytest

from tests.integration.transport.harness import GrpcNet, MemoryNet, Net


@pytest.fixture(params=[MemoryNet, GrpcNet], ids=["memory", "grpc"])
async def net(request: pytest.FixtureRequest) -> AsyncIterator[Net]:
    """A network, closed after the test."""
    made: Net = request.param()
    yield made
    await made.close()


@pytest.fixture
async def grpc_net() -> AsyncIterator[GrpcNet]:
    """The real one alone."""
    made = GrpcNet()
    yield made
    await made.close()
