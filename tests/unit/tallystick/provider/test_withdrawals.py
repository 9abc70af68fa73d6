"""What does an owner ask back when an earlier request still waits for the chain?"""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import DeadlineExceeded
from tallystick.provider.money import move
from tallystick.sdk.on_chain import OnChain


@dataclass
class StuckChain:
    """An account whose transactions wait; `sent` is what was asked back, by intention."""

    sent: dict[str, int] = field(default_factory=dict)

    async def send(self, key: str, amount: int) -> Any:
        """As `Sender.send`: the same key is the same transaction."""
        self.sent.setdefault(key, amount)
        raise DeadlineExceeded(f"{key}: is not mined")

    def on_chain(self) -> OnChain:
        """Its contracts and sender."""

        async def head() -> int:
            return 1

        async def nonce(account: object) -> int:
            return 0

        async def stake(account: object, head: object) -> Any:
            return SimpleNamespace(free=20, unbonding=0, withdrawable_at=0)

        chain = SimpleNamespace(head=head, nonce=nonce)
        stakes = SimpleNamespace(stake=stake, request_unbond=lambda amount: amount)
        sender = SimpleNamespace(account=b"", send=self.send)
        return cast(
            OnChain,
            SimpleNamespace(contracts=SimpleNamespace(chain=chain, stakes=stakes), sender=sender),
        )


async def test_move__another_amount_while_the_first_waits__is_not_taken_for_the_first() -> None:
    chain = StuckChain()

    for amount in (5, 5, 7):
        with pytest.raises(DeadlineExceeded):
            await move(chain.on_chain(), BaseUnits(amount))

    assert sorted(chain.sent.values()) == [5, 7]
