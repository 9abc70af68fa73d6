"""Entry point of the API: `python -m market.api`."""

import logging
import socket
import sys

import uvicorn
from fastapi import FastAPI

from contracts.terms.errors import TallystickError
from market.api.app import app_of
from market.settings import read_settings


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
    """Serve on 127.0.0.1 until a signal ends it."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        settings = read_settings()
    except TallystickError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2
    app = app_of(settings)
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=settings.api_port,
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=64 * 2**10,
    )
    Server(config, app).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
