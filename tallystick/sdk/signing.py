"""How does a program sign a request, and by which clock? See `market.bodies.requests`.

The market's clock counts, so that a machine whose own is off can still speak: its network view
says what it is, and this machine's monotonic clock goes on from there.
"""

import time
from dataclasses import dataclass
from typing import Self

from contracts.keys.wallet import Session, Wallet
from contracts.terms.ids import Digest
from contracts.terms.moments import UnixMillis
from contracts.terms.typed_data import Domain
from market.bodies.network import NetworkView
from market.bodies.requests import SignedCall, request_digest

Signer = Wallet | Session


@dataclass(frozen=True)
class MarketClock:
    """Where signatures hold, and what time it is there."""

    domain: Domain
    ahead: int  # ms, of the monotonic clock

    @classmethod
    def of(cls, network: NetworkView) -> Self:
        """The clock of the market that has just answered."""
        domain = Domain(network.chain_id, network.contracts.settlement)
        return cls(domain, network.clock - time.monotonic_ns() // 10**6)

    def now(self) -> UnixMillis:
        """By the market's clock."""
        return UnixMillis(self.ahead + time.monotonic_ns() // 10**6)


def signed_by(
    by: Signer,
    domain: Domain,
    method: str,
    target: str,
    body: Digest,
    at: UnixMillis,
    *,
    key: str = "",
) -> str:
    """The value of `Authorization`; arguments as of `request_digest`."""
    said = request_digest(domain, method, target, key, body, at)
    if isinstance(by, Wallet):
        return SignedCall(by.account, at, body, by.sign_digest(said)).header()
    return SignedCall(by.key, at, body, by.private_key.sign(said)).header()
