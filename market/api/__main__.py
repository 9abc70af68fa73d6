"""Entry point of the API: `python -m market.api`."""

import logging
import sys

import uvicorn

from contracts.terms.errors import TallystickError
from market.api.app import app_of
from market.settings import read_settings


def main() -> int:
    """Serve on 127.0.0.1 until a signal ends it."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        settings = read_settings()
    except TallystickError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2
    uvicorn.run(
        app_of(settings),
        host="127.0.0.1",
        port=settings.api_port,
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=64 * 2**10,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
