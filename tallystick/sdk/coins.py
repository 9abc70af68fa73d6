"""A job's coins as its market says: for a coordinator, whose members check what it seals.

They name no seals, so they are nothing for a member.
"""

import time
from collections.abc import Callable

from contracts.terms.coins import Coin
from contracts.terms.ids import JobId, StepNumber
from market.bodies.routes import GET_COINS
from tallystick.sdk.client import MarketClient

ASK_EVERY = 1.0
"""Seconds between two questions to the market, while a coin is missing."""


class MarketCoins:
    """Satisfies `contracts.terms.coins.Coins`. A coin that counts never changes: asked for once."""

    def __init__(
        self, client: MarketClient, job: JobId, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._client, self._job, self._monotonic = client, job, monotonic
        self._known: dict[StepNumber, Coin] = {}
        self._asks_again_at = float("-inf")

    async def coin_of(self, step: StepNumber) -> Coin | None:
        """See `Coins.coin_of`."""
        if step not in self._known and self._monotonic() >= self._asks_again_at:
            self._asks_again_at = self._monotonic() + ASK_EVERY
            for each in (await self._client.call(GET_COINS, job=self._job, after=step - 1)).steps:
                if each.coin is not None:
                    coin = Coin(each.step, each.root, each.block, each.coin, seal=None)
                    self._known[each.step] = coin
        return self._known.get(step)
