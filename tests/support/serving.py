"""The real API over a test's market on loopback, in this loop, so that streams stream."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager

import uvicorn
from starlette.types import ASGIApp

from market.api.__main__ import Server
from market.api.app import make_app
from market.api.context import Api


class QuietServer(uvicorn.Server):
    """Leaves the signals to whoever runs it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


class _Server(QuietServer, Server):
    """Ends its streams first, as the market does."""


def served(api: Api, port: int = 0) -> AbstractAsyncContextManager[str]:
    """The URL of `api`, until the end of the block; `port` as before, to be a restart."""
    app = make_app(api)
    return listening(_Server(quiet(app), app), port)


def quiet(app: ASGIApp) -> uvicorn.Config:
    """How a test serves."""
    return uvicorn.Config(
        app,
        log_level="critical",
        lifespan="off",
        ws="none",
        access_log=False,
        timeout_graceful_shutdown=1,  # who comes again at once may keep his connection
    )


@asynccontextmanager
async def listening(server: uvicorn.Server, port: int = 0) -> AsyncIterator[str]:
    """The URL of a server that serves until the end of the block."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
        serving = asyncio.create_task(server.serve([listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving
            for connection in list(server.server_state.connections):
                connection.transport.abort()  # as the end of a process does
