"""A job's coins as its market says: for a coordinator, whose members check what it seals.

They name no seals, so they are nothing for a member.
"""

from contracts.terms.coins import Coin
from contracts.terms.ids import JobId, StepNumber
from tallystick.sdk.client import MarketClient


class MarketCoins:
    """Satisfies `contracts.terms.coins.Coins`. A coin that counts never changes: asked for once."""

    def __init__(self, client: MarketClient, job: JobId) -> None:
        self._client, self._job = client, job
        self._known: dict[StepNumber, Coin] = {}

    async def coin_of(self, step: StepNumber) -> Coin | None:
        """See `Coins.coin_of`."""
        if step not in self._known:
            for each in await self._client.coins(self._job, after=step - 1):
                if each.coin is not None:
                    coin = Coin(each.step, each.root, each.block, each.coin, seal=None)
                    self._known[each.step] = coin
        return self._known.get(step)
