"""What several verbs share: options, how one asks a market, and what a transaction needs."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from contracts.terms import errors
from contracts.terms.ids import Digest, JobId
from contracts.terms.typed_names import digits_of, parse_name
from market.bodies.routes import GET_JOBS
from tallystick.sdk.client import MarketClient
from tallystick.sdk.folders import HomeSettings

R = TypeVar("R")

_START = re.compile("[0-9a-f]{8,63}")  # a list shows twelve

Market = Annotated[
    str | None, typer.Option("--market", help="URL of the market. Default: TALLYSTICK_MARKET.")
]
Job = Annotated[
    str,
    typer.Argument(help="Job id: 64 hexadecimal digits, or the first of them.", metavar="JOB"),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")
]
PosterWallet = Annotated[
    Path | None,
    typer.Option("--wallet", help="Keystore file of the poster. Default: HOME/poster.json."),
]
ProviderHome = Annotated[Path | None, typer.Option("--home", help="As of `provider start`.")]
DataHome = Annotated[
    Path | None,
    typer.Option("--home", help="Data folder. Default: TALLYSTICK_HOME, else ~/.tallystick."),
]
Timeout = Annotated[
    int, typer.Option("--timeout", help="Seconds to wait at most.", min=1, max=31_536_000)
]


def market_url(market: str | None) -> str:
    """The market that is asked."""
    return HomeSettings().market if market is None else market


def poster_wallet(wallet: Path | None) -> Path:
    """A poster's keystore."""
    return wallet or HomeSettings().home / "poster.json"


def provider_home(home: Path | None) -> Path:
    """A provider's folder."""
    return home or HomeSettings().home / "provider"


def ask(market: str | None, question: Callable[[MarketClient], Awaitable[R]]) -> R:
    """Ask a market one thing."""

    async def asked() -> R:
        async with MarketClient(market_url(market)) as client:
            return await question(client)

    return asyncio.run(asked())


def ask_of_job(
    market: str | None, job: str, question: Callable[[MarketClient, JobId], Awaitable[R]]
) -> R:
    """Ask a market one thing about the job that a person named."""

    async def asked(client: MarketClient) -> R:
        return await question(client, await named_job(client, job))

    return ask(market, asked)


async def named_job(client: MarketClient, text: str) -> JobId:
    """The job whose id, or whose first digits, a person typed.

    Raises:
        Malformed: neither. NotFound: no job of this market begins so. Conflict: several do.
    """
    digits = digits_of(text).lower()
    if not _START.fullmatch(digits):
        return JobId(parse_digest(text, "job id"))
    listed = (await client.call(GET_JOBS)).jobs
    return one_of({each.job: each.job for each in listed}, digits, client.url)


def one_of(jobs: Mapping[JobId, R], text: str, where: str) -> R:
    """What belongs to the job whose id, or first eight digits or more, a person typed.

    Raises:
        Malformed: neither. NotFound: no job begins so. Conflict: several do.
    """
    digits = digits_of(text).lower()
    if not _START.fullmatch(digits):
        digits = parse_digest(text, "job id").hex()
    found = [job for job in jobs if job.hex().startswith(digits)]
    if len(found) > 1:
        raise errors.Conflict(f"{len(found)} jobs begin with {digits}: give more digits")
    if not found:
        raise errors.NotFound(f"no job of {where} begins with {digits}")
    return jobs[found[0]]


def typed(what: str, text: str, parse: Callable[[object], R]) -> R:
    """What a person typed for an option, or as an argument.

    Raises:
        Malformed: as `parse` says, which raises ValueError.
    """
    try:
        return parse(text)
    except ValueError as error:
        raise errors.Malformed(f"{what} {text!r:.80}: {error}") from error


def parse_digest(text: str, what: str) -> Digest:
    """A digest that a person typed; raises as `parse_name`."""
    return Digest(parse_name(text, what, 32))


@contextmanager
def needs_provider(why: str = "this sends a transaction") -> Iterator[None]:
    """Around the imports that only the extra `provider` brings."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise errors.WrongConfiguration(
            f"{why}, and {error.name} is not installed: install the extra "
            "`provider` (pip install 'tallystick[provider]')"
        ) from error
