"""Entry point of a host: `python -m tallystick.host`."""

import os
import secrets
import sys

from pydantic import ValidationError

from contracts.terms.errors import WrongConfiguration
from tallystick.host.host import Host
from tallystick.host.settings import HostSettings
from tallystick.sdk.client import MarketClient
from tallystick.sdk.process import run_process
from tallystick.up.forkserver import starter


def _say(line: str) -> None:
    print(line, flush=True)


async def _host() -> None:
    settings = _settings()
    token = settings.host_token.get_secret_value() or _stored_token(settings)
    async with MarketClient(settings.api_url, token=token) as client:
        await Host(
            client=client,
            name=settings.host_name,
            keys=settings.keys,
            jobs=settings.jobs,
            logs=settings.jobs.parent / "logs",
            listen=settings.listen,
            num_trainers=settings.trainers,
            environment=os.environ,
            new_secret=lambda: secrets.token_bytes(32),
            say=_say,
            start=starter(settings.forkserver),
        ).run()


def _settings() -> HostSettings:
    try:
        return HostSettings()
    except ValidationError as error:
        problems = (
            f"TALLYSTICK_{'_'.join(map(str, problem['loc'])).upper()}: {problem['msg']}"
            for problem in error.errors(include_input=False)  # an input may be the token
        )
        raise WrongConfiguration("; ".join(problems)) from None


def _stored_token(settings: HostSettings) -> str:
    path = settings.keys / "host-token"
    try:
        return path.read_text().strip()
    except OSError as error:
        raise WrongConfiguration(
            f"no host token: set TALLYSTICK_HOST_TOKEN, or store it in {path} ({error.strerror})"
        ) from error


def main() -> int:
    """Host until SIGTERM."""
    return run_process(_host(), lambda event, **fields: _say(f"{event} {fields}"))


if __name__ == "__main__":
    sys.exit(main())
