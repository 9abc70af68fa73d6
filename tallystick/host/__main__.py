"""Entry point of a host: `python -m tallystick.host`."""

import os
import secrets
import sys

from tallystick.host.host import Host
from tallystick.host.settings import HostSettings
from tallystick.sdk.client import MarketClient
from tallystick.sdk.process import run_process


def _say(line: str) -> None:
    print(line, flush=True)


async def _host(settings: HostSettings) -> None:
    token = settings.host_token.get_secret_value()
    token = token or (settings.keys / "host-token").read_text().strip()
    async with MarketClient(settings.api_url, token=token) as client:
        await Host(
            client=client,
            name=settings.host_name,
            keys=settings.keys,
            jobs=settings.jobs,
            logs=settings.jobs.parent / "logs",
            listen=settings.listen,
            environment=os.environ,
            new_secret=lambda: secrets.token_bytes(32),
            say=_say,
        ).run()


if __name__ == "__main__":
    sys.exit(run_process(_host(HostSettings()), lambda event, **fields: _say(f"{event} {fields}")))
