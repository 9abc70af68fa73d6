"""What does an account stake before it offers, when the chain is slow?"""

import contextlib
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import DeadlineExceeded, Unavailable
from contracts.terms.ids import Address
from market.bodies.market import NetworkView
from tallystick.provider.money import prepare
from tallystick.sdk.client import MarketClient
from tallystick.sdk.on_chain import OnChain

ANN = Address(b"a" * 20)
NETWORK = cast(NetworkView, SimpleNamespace(embedded=False))


@dataclass
class SlowChain:
    """One account's stake; a transaction is mined when it is told, and waits until then."""

    staked: int = 0
    mined: int = 0  # transactions
    pool: list[tuple[str, int]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    mines_at_once: bool = True
    mines_after_stake_is_read: bool = False

    def mine(self) -> None:
        """Run all that waits."""
        for key, amount in self.pool:
            self.mined += 1
            self.staked += amount if key.startswith("stake") else 0
        self.pool.clear()

    async def send(self, key: str, amount: int) -> None:
        """As `Sender.send`."""
        if key not in self.keys:
            self.keys.add(key)
            self.pool.append((key, amount))
        if self.mines_at_once or key.startswith("approve"):
            self.mine()
        if self.pool:
            raise DeadlineExceeded(f"{key}: is not mined")

    async def resend(self) -> int:
        """As `Sender.resend`."""
        return len(self.pool)

    async def stake(self, account: Address, head: object) -> Any:
        """Active stake, as of the head."""
        found = SimpleNamespace(active=self.staked)
        if self.mines_after_stake_is_read:
            self.mine()
        return found

    def on_chain(self) -> OnChain:
        """Its contracts and sender."""

        async def head() -> Any:
            return SimpleNamespace(number=1)

        async def plenty(*_: object) -> int:
            return 10**24

        async def nonce(account: Address) -> int:
            return self.mined

        chain = SimpleNamespace(head=head, balance=plenty, nonce=nonce)
        stakes = SimpleNamespace(address=ANN, stake=self.stake, add=lambda amount: amount)
        token = SimpleNamespace(balance=plenty, approve=lambda spender, amount: amount)
        contracts = SimpleNamespace(chain=chain, stakes=stakes, token=token)
        return cast(OnChain, SimpleNamespace(contracts=contracts, sender=self))


async def prepared(chain: SlowChain) -> None:
    client = cast(MarketClient, None)
    await prepare(client, ANN, BaseUnits(5), NETWORK, chain.on_chain(), print)


async def test_prepare__stake_is_mined_while_it_is_tried_again__is_staked_once() -> None:
    chain = SlowChain(mines_at_once=False)
    with pytest.raises(Unavailable):
        await prepared(chain)

    chain.mines_at_once = chain.mines_after_stake_is_read = True
    with contextlib.suppress(Unavailable):
        await prepared(chain)
    await prepared(chain)

    assert chain.staked == 5
