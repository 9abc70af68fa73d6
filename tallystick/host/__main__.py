"""Entry point of a host: `python -m tallystick.host`."""

import os
import sys

from contracts.settings import settings_of
from contracts.terms.printable import printable
from tallystick.host.host import Host
from tallystick.host.settings import HostSettings, credential_of
from tallystick.sdk.client import MarketClient
from tallystick.sdk.process import run_process


def _say(line: str) -> None:
    print(printable(line), flush=True)


async def _host() -> None:
    settings = settings_of(HostSettings)
    token = credential_of(settings)
    async with MarketClient(settings.api_url, token=token) as client:
        await Host(
            client=client,
            settings=settings,
            environment=os.environ,
            say=_say,
        ).run()


def main() -> int:
    """Host until SIGTERM."""
    return run_process(_host(), lambda event, **fields: _say(f"{event} {fields}"))


if __name__ == "__main__":
    sys.exit(main())
