"""Is this machine fit to provide? The rows that `doctor` adds: the market's clock, disk for leases.

Looks only; changes nothing. A market that nobody named need not be there: then its row is missing.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from contracts.terms.errors import Malformed, Refused, Unavailable
from market.bodies.routes import GET_NETWORK
from tallystick.provider.disk import RESERVE, folder_bytes, free_bytes, megabytes
from tallystick.provider.folder import load_peer_file
from tallystick.sdk.client import MarketClient
from tallystick.sdk.submit import MAX_SKEW_MILLIS, clock_sentence
from tallystick.up.doctor import Row, row


def examine_provider(home: Path, market: str, *, must_answer: bool) -> Iterator[Row]:
    """Rows about a provider's home and its market.

    Args:
        home: Of the provider; it need not exist.
        market: Its URL.
        must_answer: Whether it has to be there; else its row is missing where it is not.

    Raises:
        Refused, Unavailable: a market that must answer does not, or is none.
    """
    yield from _clock(market, must_answer=must_answer)
    yield from examine_home(home)


def examine_home(home: Path) -> Iterator[Row]:
    """Rows about the disk: what is free, and what each lease takes."""
    yield _disk(home)
    yield from _leases(home)


def _clock(market: str, *, must_answer: bool) -> Iterator[Row]:
    try:
        ahead = asyncio.run(_ahead_of(market))
    except (Refused, Unavailable):
        if must_answer:
            raise
        return
    yield clock_row(ahead, f"within {MAX_SKEW_MILLIS // 1000} s of {market}")


def clock_row(ahead_millis: int, wanted: str) -> Row:
    """What the difference of both clocks means."""
    ok = abs(ahead_millis) <= MAX_SKEW_MILLIS
    found = "equal to the second" if abs(ahead_millis) < 1000 else clock_sentence(ahead_millis)
    return row("market clock", wanted, found, ok, "set the clock (NTP)")


async def _ahead_of(market: str) -> int:
    """Milliseconds by which our clock is ahead of the market's, in the middle of the call."""
    async with MarketClient(market) as client:
        began = time.time()
        theirs = (await client.call(GET_NETWORK)).clock
        return round((began + time.time()) * 500) - theirs


def _disk(home: Path) -> Row:
    nearest = next(each for each in (home, *home.parents) if each.exists())
    free = free_bytes(nearest)
    remedy = f"free some space under {home}; `job plan` says what a job needs beside that"
    wanted = f"{megabytes(RESERVE)} free beside what a lease may take"
    return row("provider disk", wanted, f"{megabytes(free)} free", free >= RESERVE, remedy)


def _leases(home: Path) -> Iterator[Row]:
    """The folders of leases that are here: what each may take, and what it holds."""
    for folder in sorted((home / "leases").glob("*")):
        try:
            bound = load_peer_file(folder).disk
        except Malformed:  # its peer was never started
            continue
        held = folder_bytes(folder)
        yield row(
            f"lease {folder.name[:8]}",
            f"{megabytes(bound)} at most",
            f"{megabytes(held)}",
            held <= bound,
            "more than its job may take: tell us, with the log of its peer",
        )
