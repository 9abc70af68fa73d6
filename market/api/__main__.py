"""Entry point of the API: `python -m market.api`."""

import logging
import socket
import sys

import uvicorn
from fastapi import FastAPI

from contracts.settings import settings_of
from contracts.terms.errors import TallystickError, WrongConfiguration
from contracts.terms.printable import OneLine, printable
from market.api.app import app_of
from market.settings import Settings


class Server(uvicorn.Server):
    """Ends the streams of live events first: a shutdown waits for answers that never end."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop to listen, let requests end, and stop."""
        if (api := getattr(self._app.state, "api", None)) is not None:
            await api.close()
        await super().shutdown(sockets)


def main() -> int:
    """Serve on loopback, and on the address that is to be reached, until a signal ends it."""
    lines = logging.StreamHandler()
    lines.setFormatter(OneLine("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[lines])
    try:
        settings = settings_of(Settings)
        sockets = _listening(settings)
    except TallystickError as error:
        print(f"error: {printable(error.message)}", file=sys.stderr)
        return 2
    app = app_of(settings)
    config = uvicorn.Config(
        app,
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=64 * 2**10,
    )
    Server(config, app).run(sockets)
    return 0


def _listening(settings: Settings) -> list[socket.socket]:
    """One socket an address.

    Raises:
        WrongConfiguration: an address is not this machine's, or its port is taken.
    """
    hosts = dict.fromkeys(filter(None, ("127.0.0.1", settings.listen_address)))
    try:
        return [socket.create_server((host, settings.api_port), backlog=2048) for host in hosts]
    except OSError as error:
        where = " and ".join(f"{host}:{settings.api_port}" for host in hosts)
        raise WrongConfiguration(f"cannot listen on {where}: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
