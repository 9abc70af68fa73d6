"""At which address do this machine's peers listen? Where others of the same network can dial them.

A market in a private network (also one like 100.64.0.0/10, which overlays use) has providers
there: peers listen at the address that this machine has on the way to it. Behind a public address
there may be anything, so for such a market, and for one on this machine alone, peers stay on
loopback: the others reach them through the coordinator. A peer speaks mTLS with keys that the
signed membership names, wherever it listens.
"""

import ipaddress
import socket
from collections.abc import Callable
from typing import TypeAlias
from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"

Route: TypeAlias = Callable[[str], tuple[str, str] | None]
"""From a URL to its address and our own on the way there; None if nothing leads there."""


def listen_address(market: str, chain: str, *, route: Route | None = None) -> str:
    """The address for peers of a market.

    Args:
        market: URL that this machine uses for it.
        chain: URL of its chain, which `up --listen` serves at an address that others reach too.
        route: See `Route`; by default that of this machine.
    """
    for url in (market, chain):
        ends = (route or route_to)(url)
        if ends is not None and all(map(_is_private, ends)):
            return ends[1]
    return LOOPBACK


def route_to(url: str) -> tuple[str, str] | None:
    """See `Route`."""
    parts = urlsplit(url)
    try:
        there = socket.getaddrinfo(parts.hostname, parts.port or 80, socket.AF_INET)[0][4]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(there)  # of a datagram: nothing is sent
            return str(there[0]), str(probe.getsockname()[0])
    except OSError:
        return None


def _is_private(address: str) -> bool:
    known = ipaddress.ip_address(address)
    return not (known.is_global or known.is_loopback or known.is_unspecified)
